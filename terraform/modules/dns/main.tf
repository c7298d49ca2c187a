# Names for the nodes inside the VPC.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}

resource "aws_route53_zone" "private" {
  #checkov:skip=CKV2_AWS_38:DNSSEC signing exists for public zones only
  #checkov:skip=CKV2_AWS_39:Query logging exists for public zones only

  name    = var.zone_name
  comment = "Nodes of ${var.name}"

  vpc {
    vpc_id = var.vpc_id
  }
}

resource "aws_route53_record" "node" {
  #checkov:skip=CKV2_AWS_23:The records name the nodes' private addresses, which come in by a variable

  for_each = var.addresses

  zone_id = aws_route53_zone.private.zone_id
  name    = "${each.key}.${var.zone_name}"
  type    = "A"
  ttl     = 60 # a replaced node has a new address
  records = [each.value]
}
