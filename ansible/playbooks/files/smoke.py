"""Ask gateway, API servers and Prometheus whether serving works. Runs on the operations node; reads `Smoke` as JSON
from standard input (it holds an API key, so not from the command line) and prints a list of checks as JSON, or at once
{"serves": names} when the endpoint serves other models than the one that is asked for."""

import dataclasses
import json
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Smoke:
    address: str  # of the gateway
    port: int
    ca: str  # file with the CA's certificate; empty: the system's list
    key_name: str
    key: str
    model: str
    servers: list[dict]  # {name, address, port}
    targets: list[dict]  # {node, engines}
    prometheus: str
    answer_timeout: float  # seconds for one answer
    settle_timeout: float  # seconds in which health checks and scrapes may still be catching up

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"


@dataclasses.dataclass(frozen=True)
class Check:
    what: str
    wanted: str
    seen: str
    ok: bool


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int | None  # None: no HTTP answer at all
    text: str

    def __str__(self) -> str:
        return f"no answer ({self.text})" if self.status is None else f"{self.status} {self.text[:300]}".strip()

    def json(self) -> dict:
        try:
            value = json.loads(self.text)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


def ask(smoke: Smoke, url: str, *, body: dict | None = None, **headers: str) -> Answer:
    data = None if body is None else json.dumps({"model": smoke.model, "temperature": 0, **body}).encode()
    if data:
        headers["Content-Type"] = "application/json"
    context = ssl.create_default_context(cafile=smoke.ca or None) if url.startswith("https:") else None
    request = urllib.request.Request(url, data, headers)  # noqa: S310  the URLs are the inventory's
    try:
        with urllib.request.urlopen(request, timeout=smoke.answer_timeout, context=context) as response:  # noqa: S310
            return Answer(response.status, response.read().decode())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read().decode(errors="replace"))
    except (OSError, ValueError) as error:
        return Answer(None, str(getattr(error, "reason", error)))
    except Exception as error:  # http.client has a family of its own for half an answer
        return Answer(None, f"{type(error).__name__} {error}")


class OtherModel(Exception):
    """The endpoint works and serves models, but not the one that is asked for. Waiting would not change that."""


def served(smoke: Smoke) -> list[str]:
    """The models that the endpoint says it serves; empty when it does not say."""
    answer = ask(smoke, f"{smoke.url}/v1/models", Authorization=f"Bearer {smoke.key}")
    return [str(model.get("id")) for model in answer.json().get("data", [])] if answer.status == 200 else []


def settled(smoke: Smoke, check: Callable[[Smoke], Check]) -> Check:
    """Repeat a check until it holds or everything had time to catch up."""
    end = time.monotonic() + smoke.settle_timeout
    while not (result := check(smoke)).ok and time.monotonic() < end:
        time.sleep(2)
    return result


def chat(smoke: Smoke) -> Check:
    question = {"max_tokens": 16, "messages": [{"role": "user", "content": "How much is 1 + 1?"}]}
    answer = ask(smoke, f"{smoke.url}/v1/chat/completions", body=question, Authorization=f"Bearer {smoke.key}")
    if answer.status == 404 and (names := served(smoke)) and smoke.model not in names:
        raise OtherModel(", ".join(names))
    choices = answer.json().get("choices") or [{}]
    text = choices[0].get("message", {}).get("content") or ""
    ok = answer.status == 200 and bool(text)
    what = f"chat through {smoke.url} with key {smoke.key_name}"
    return Check(what, "200 with a text", f"200 with {text!r}" if ok else str(answer), ok)


def models(smoke: Smoke) -> Check:
    answer = ask(smoke, f"{smoke.url}/v1/models", Authorization=f"Bearer {smoke.key}")
    names = [model.get("id") for model in answer.json().get("data", [])]
    ok = answer.status == 200 and smoke.model in names
    seen = f"200 with {names}" if ok else str(answer)
    return Check("models through the gateway", f"200 with {smoke.model}", seen, ok)


def shut_doors(smoke: Smoke) -> list[Check]:
    answers = [
        ("no API key", 401, ask(smoke, f"{smoke.url}/v1/models")),
        ("a wrong API key", 401, ask(smoke, f"{smoke.url}/v1/models", Authorization=f"Bearer {'wrong' * 8}")),
        ("plain HTTP to port 80", None, ask(smoke, f"http://{smoke.address}/v1/models")),
        (f"plain HTTP to port {smoke.port}", None, ask(smoke, f"http://{smoke.address}:{smoke.port}/v1/models")),
    ]
    return [
        Check(what, str(wanted or "no answer"), str(answer), answer.status == wanted)
        for what, wanted, answer in answers
    ]


def engines_of(smoke: Smoke, server: dict) -> Check:
    """Ask every data-parallel rank behind one API server, past the gateway."""
    ranks = next((target["engines"] for target in smoke.targets if target["node"] == server["name"]), 1)
    url = f"http://{server['address']}:{server['port']}/v1/completions"
    what = f"{ranks} engine(s) of {server['name']} at {url}"
    for rank in range(ranks):
        pin = {"X-data-parallel-rank": str(rank)} if ranks > 1 else {}
        answer = ask(smoke, url, body={"prompt": "1 + 1 =", "max_tokens": 1}, **pin)
        if answer.status != 200 or not answer.json().get("choices"):
            return Check(what, "200 from each", f"engine {rank}: {answer}", False)
    return Check(what, "200 from each", "200 from each", True)


def monitoring(smoke: Smoke) -> Check:
    """One query for both: which targets are up, and for which engines there are figures."""
    query = urllib.parse.urlencode({"query": '{__name__=~"up|vllm:num_requests_running",job="vllm"}'})
    answer = ask(smoke, f"{smoke.prometheus}/api/v1/query?{query}")
    wanted = {target["node"]: [str(rank) for rank in range(target["engines"])] for target in smoke.targets}
    up: set[str] = set()
    engines: dict[str, list[str]] = {}
    for series in answer.json().get("data", {}).get("result", []):
        labels = series["metric"]
        node = labels.get("node", "?")
        if labels["__name__"] != "up":
            engines.setdefault(node, []).append(labels.get("engine", "?"))
        elif series["value"][1] == "1":
            up.add(node)
    seen = {node: sorted(engines.get(node, []), key=lambda engine: (len(engine), engine)) for node in sorted(up)}
    wording = f"up with engines {wanted}"
    if answer.status != 200:
        return Check("Prometheus sees vLLM", wording, str(answer), False)
    return Check("Prometheus sees vLLM", wording, f"up with engines {seen}", seen == wanted)


def main() -> None:
    smoke = Smoke(**json.load(sys.stdin))
    try:
        answered = settled(smoke, chat)
    except OtherModel as names:
        print(json.dumps({"serves": str(names)}))
        return
    checks = [
        answered,
        models(smoke),
        *shut_doors(smoke),
        *(engines_of(smoke, server) for server in smoke.servers),
        settled(smoke, monitoring),
    ]
    print(json.dumps([dataclasses.asdict(check) for check in checks]))


main()
