"""Route 53: a hosted zone that is made with a VPC is private, whether or not the request says so."""

from moto.core.responses import ActionResult
from moto.route53 import urls
from moto.route53.responses import Route53

PATH = r"{0}/(?P<api_version>[\d_-]+)/hostedzone$"


class LabRoute53(Route53):
    def create_hosted_zone(self) -> ActionResult:
        if self._get_param("VPC.VPCId"):
            self.params.setdefault("HostedZoneConfig", {})["PrivateZone"] = True
        return super().create_hosted_zone()


def install() -> None:
    urls.url_paths[PATH] = LabRoute53.dispatch
