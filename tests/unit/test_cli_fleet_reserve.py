"""`coderack fleet reserve` and `reservations` against EC2, which the lab's emulator plays."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from coderack.clients.aws import AwsError
from coderack.clients.aws import client as make_client
from coderack.fleet import files, reserving

from .cloud import REGION, buy_block, launch_fleet, refusing
from .program import run

FILE = "reservation.auto.tfvars.json"
PRICE = "1440.00"  # of two nodes for a day, in the emulator


def reserve(*options: str, stdin: str = "") -> tuple[int, str, str]:
    return run("fleet", "reserve", "--env", "aws", "--region", REGION, *options, stdin=stdin)


def bought(ec2: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ec2.describe_capacity_reservations()["CapacityReservations"]
    return found


def capacity(inventories: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((inventories / "aws" / FILE).read_text())
    assert list(data) == ["capacity"]
    value: dict[str, Any] = data["capacity"]
    return value


def test_shows_offers_and_buys_what_was_typed(inventories: Path, ec2: Any) -> None:
    code, out, err = reserve(stdin=f"1 {PRICE}\n")
    assert (code, err) == (0, "")
    row = next(line.split() for line in out.splitlines() if line.split()[:1] == ["1"])
    assert row[1:4] == [f"{REGION}a", "2", "p5.48xlarge"]
    assert row[6:] == ["1", PRICE, "USD", "30.00"]
    (block,) = bought(ec2)
    written = capacity(inventories)
    assert written == {
        "kind": "capacity_block",
        "reservation_id": block["CapacityReservationId"],
        "instance_type": "p5.48xlarge",
        "zone": f"{REGION}a",
        "count": 2,
        "starts_at": block["StartDate"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        "ends_at": block["EndDate"].strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    assert {tag["Key"] for tag in block["Tags"]} == {"coderack:environment", "coderack:purchase"}
    assert sorted(entry.name for entry in (inventories / "aws").iterdir()) == [".reservation.lock", FILE]


@pytest.mark.parametrize(
    "typed", ["", "\n", "yes\n", "1\n", f"{PRICE}\n", "1 1\n", f"2 {PRICE}\n", f"1 {PRICE} please\n"]
)
def test_buys_nothing_without_number_and_price(inventories: Path, ec2: Any, typed: str) -> None:
    code, _, err = reserve(stdin=typed)
    assert (code, err) == (1, "coderack: nothing bought: number and price of an offer were not typed\n")
    assert bought(ec2) == []
    assert not (inventories / "aws" / FILE).exists()


def test_a_block_in_another_region_is_not_bought_a_second_time(inventories: Path, ec2: Any) -> None:
    assert reserve("--yes", "--max-price", PRICE)[0] == 0
    block, path = bought(ec2)[0]["CapacityReservationId"], inventories / "aws" / FILE
    before = path.read_bytes()
    code, _, err = run("fleet", "reserve", "--env", "aws", "--region", "us-east-1", "--yes", "--max-price", PRICE)
    assert code == 2
    assert f"names {block} in {REGION}a, until " in err
    assert "and us-east-1 is asked; give its --region (or AWS_REGION), or move the file away" in err
    assert path.read_bytes() == before
    # One that has ended is nobody's any more.
    path.write_text(before.decode().replace(capacity(inventories)["ends_at"], "2025-01-01T11:30:00Z"))
    assert "names" not in run("fleet", "reserve", "--env", "aws", "--region", "us-east-1")[2]


@pytest.mark.parametrize("text", ["", "[]", '{"capacity": {"kind": "odcr", "reservation_id": "cr-0a"}}'])
def test_a_file_of_somebody_elses_is_not_written_over(inventories: Path, ec2: Any, text: str) -> None:
    path = inventories / "aws" / FILE
    path.write_text(text)
    code, _, err = reserve("--yes", "--max-price", PRICE)
    assert (code, bought(ec2), path.read_text()) == (2, [], text)
    assert "is no block that this command wrote" in err


def test_buys_without_asking_up_to_a_price(inventories: Path, ec2: Any) -> None:
    code, out, err = reserve("--yes", "--max-price", "1439.99")
    assert code == 1
    assert f"nothing bought: the offer costs {PRICE} USD, --max-price is 1439.99" in err
    assert bought(ec2) == []
    code, out, _ = reserve("--yes", "--max-price", "1440", "--json")
    report = json.loads(out)
    assert (code, report["schema"], report["bought"]) == (0, "coderack.fleet-reserve/1", True)
    assert report["capacity"] == capacity(inventories)


def test_a_repeated_run_buys_nothing_and_writes_a_lost_file_again(inventories: Path, ec2: Any) -> None:
    reserve(stdin=f"1 {PRICE}\n")
    first = capacity(inventories)
    (inventories / "aws" / FILE).unlink()
    code, out, _ = reserve("--yes", "--max-price", "9999")
    assert code == 0
    assert f"already held, nothing bought: {first['reservation_id']}" in out
    assert capacity(inventories) == first
    assert len(bought(ec2)) == 1


def test_a_run_killed_after_buying_is_made_good(inventories: Path, ec2: Any) -> None:
    block = buy_block(ec2, env="aws")
    intent = inventories / "aws" / ".reservation-intent.json"
    intent.write_text('{"token": "c0ffee", "offer": "cbr-1", "at": "2027-01-31T11:30:00+00:00"}')
    code, _, _ = reserve("--yes", "--max-price", "9999")
    assert (code, capacity(inventories)["reservation_id"]) == (0, block["CapacityReservationId"])
    assert len(bought(ec2)) == 1
    assert not intent.exists()


def test_a_purchase_of_unknown_result_is_not_repeated(inventories: Path, ec2: Any) -> None:
    intent = inventories / "aws" / ".reservation-intent.json"
    intent.write_text('{"token": "c0ffee", "offer": "cbr-1", "at": "2027-01-31T11:30:00+00:00"}')
    code, _, err = reserve("--yes", "--max-price", "9999")
    assert code == 3
    assert "purchase c0ffee of offering cbr-1, begun 2027-01-31T11:30:00+00:00 had no result" in err
    assert "remove the file and try again" in err
    assert bought(ec2) == []


def offer() -> reserving.Offer:
    return reserving.offers(
        make_client("ec2", REGION),
        {"InstanceType": "p5.48xlarge", "InstanceCount": 2, "CapacityDurationHours": 24},
        None,
    )[0]


@pytest.mark.parametrize(
    ("code", "stays"),
    [("InsufficientInstanceCapacity", False), ("UnauthorizedOperation", False), ("InternalError", True)],
)
def test_a_refusal_takes_the_intent_away_and_a_doubt_keeps_it(
    tmp_path: Path, aws: str, monkeypatch: pytest.MonkeyPatch, code: str, stays: bool
) -> None:
    chosen = offer()
    with refusing(code, "no", 500 if stays else 400) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        once = make_client("ec2", REGION, attempts=1)
        with pytest.raises(AwsError, match=f"AWS answers {code}"):
            reserving.buy(once, chosen, "aws", tmp_path, datetime.datetime.now(datetime.UTC))
    assert reserving.intent_file(tmp_path).exists() is stays


def test_no_answer_keeps_the_intent(tmp_path: Path, aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = offer()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    once = make_client("ec2", REGION, attempts=1)
    with pytest.raises(AwsError, match="Could not connect"):
        reserving.buy(once, chosen, "aws", tmp_path, datetime.datetime.now(datetime.UTC))
    intent = reserving.read_intent(tmp_path)
    assert intent is not None
    assert intent.offer == chosen.id


def test_a_block_of_another_environment_or_an_ended_one_does_not_count(inventories: Path, ec2: Any) -> None:
    buy_block(ec2, env="staging")
    ended = buy_block(ec2, env="aws")["CapacityReservationId"]
    ec2.cancel_capacity_reservation(CapacityReservationId=ended)
    code, out, _ = reserve("--yes", "--max-price", "9999")
    assert code == 0
    assert out.splitlines()[-2].startswith("bought cr-")
    assert len(bought(ec2)) == 3


def test_two_runs_at_once_do_not_both_buy(inventories: Path, ec2: Any) -> None:
    with files.lock(inventories / "aws" / ".reservation.lock"):
        code, _, err = reserve("--yes", "--max-price", "9999")
    assert code == 3
    assert "is held by another run of this command" in err
    assert bought(ec2) == []


def test_nothing_on_offer_in_the_zone_is_1(inventories: Path, ec2: Any) -> None:
    code, _, err = reserve("--zone", f"{REGION}d", "--days", "7")
    assert code == 1
    assert f"no capacity block on offer: 2 x p5.48xlarge for 7 day(s) in {REGION}d; try other" in err


def test_list_shows_and_buys_nothing(inventories: Path, ec2: Any) -> None:
    code, out, _ = reserve("--list", "--json", "--count", "4", "--days", "14")
    report = json.loads(out)
    (one,) = report["offers"]
    assert (code, report["schema"], report["env"]) == (0, "coderack.fleet-offers/1", "aws")
    assert (one["count"], one["price"], one["currency"]) == (4, "40320.00", "USD")
    assert reserve("--list")[0] == 0
    assert bought(ec2) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--count", "3"), "--count is 3, wanted one of 1, 2, 4, 8, 16, 32, 64"),
        (("--days", "15"), "--days is 15, wanted 1 to 14, or a multiple of 7 up to 182"),
        (("--days", "189"), "--days is 189"),
        (("--days", "0"), "--days is 0"),
        (("--yes",), "--yes buys without asking and needs --max-price USD"),
        (("--yes", "--max-price", "much"), "--max-price is 'much', wanted an amount of US dollars such as 1500"),
        (("--yes", "--max-price", "NaN"), "--max-price is 'NaN'"),
        (("--yes", "--max-price", "-1"), "--max-price is '-1'"),
        (("--json",), "--json cannot ask for a confirmation"),
        (("--ends-before", "9999-12-31T23:59-14:00"), "--ends-before: is '9999-12-31T23:59-14:00', wanted a time"),
        (("--starts-after", "soon"), "--starts-after: is 'soon', wanted a time such as 2027-01-31"),
    ],
)
def test_bad_options_are_2(inventories: Path, ec2: Any, options: tuple[str, ...], message: str) -> None:
    code, _, err = reserve(*options)
    assert code == 2
    assert message in err
    assert bought(ec2) == []


def test_an_unreadable_intent_is_2(inventories: Path, ec2: Any) -> None:
    (inventories / "aws" / ".reservation-intent.json").write_text("{")
    code, _, err = reserve("--yes", "--max-price", "9999")
    assert code == 2
    assert "then remove the file" in err
    assert bought(ec2) == []


def test_a_price_in_another_currency_is_not_compared(
    inventories: Path, ec2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coderack.cli.fleet_reserve._CURRENCY", "CNY")
    code, _, err = reserve("--yes", "--max-price", "99999")
    assert code == 1
    assert "nothing bought: the price is in USD" in err
    assert bought(ec2) == []


def test_lists_reservations_with_the_time_left(inventories: Path, ec2: Any) -> None:
    launch_fleet(ec2)
    odcr = ec2.create_capacity_reservation(
        InstanceType="p5.48xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone=f"{REGION}a", InstanceCount=2
    )["CapacityReservation"]["CapacityReservationId"]
    ended = buy_block(ec2, env="aws", days=14)["CapacityReservationId"]
    ec2.cancel_capacity_reservation(CapacityReservationId=ended)
    code, out, _ = run("fleet", "reservations", "--region", REGION)
    assert code == 0
    rows = {words[0]: words for line in out.splitlines() if (words := line.split()) and words[0].startswith("cr-")}
    assert rows[odcr][1:6] == ["-", "odcr", "active", "2", "2"]
    assert rows[odcr][-1] == "-"
    assert rows[ended][1:4] == ["aws", "capacity-block", "cancelled"]
    (block,) = rows.keys() - {odcr, ended}
    assert rows[block][1:6] == ["-", "capacity-block", "active", "2", "0"]
    assert rows[block][-1] in ("h", "min")
    listed = json.loads(run("fleet", "reservations", "--region", REGION, "--json")[1])["reservations"]
    assert [one["id"] for one in listed] == [block, odcr, ended]
    assert 0 < listed[0]["seconds_left"] <= 2 * 86_400
    assert listed[1]["seconds_left"] is None


def test_no_reservation_is_said(inventories: Path, ec2: Any) -> None:
    answer = run("fleet", "reservations", "--env", "aws", "--region", REGION)
    assert answer == (0, "no capacity reservation in this region\n", "")
