"""`coderack fleet reserve` and `coderack fleet reservations`: GPU capacity for a known time at a known price."""

import datetime
import json
import sys
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import typer

from coderack.cli.console import Exit, JsonOption, fail, print_json, print_table
from coderack.cli.environment import (
    DEFAULT_INVENTORIES,
    EnvOption,
    InventoriesOption,
    RegionOption,
    outcomes,
    region_of,
)
from coderack.clients import aws
from coderack.fleet import files, inventory, reserving
from coderack.fleet.reserving import Held, Offer
from coderack.spec.checked import SpecError
from coderack.spec.fleet import Fleet

_CURRENCY = "USD"
_LONGEST_DAYS = 182
_COUNTS = (1, 2, 4, 8, 16, 32, 64)


def reserve(
    *,
    env: EnvOption,
    instance_type: Annotated[
        str, typer.Option("--instance-type", metavar="TYPE", help="Of the nodes.")
    ] = "p5.48xlarge",
    count: Annotated[int, typer.Option("--count", metavar="N", help="Nodes: 1, 2, 4, … 64.")] = 2,
    days: Annotated[int, typer.Option("--days", metavar="N", help="1 to 14, or whole weeks up to 182.")] = 1,
    zone: Annotated[str | None, typer.Option("--zone", metavar="ZONE", help="Only in this zone.")] = None,
    starts_after: Annotated[
        str | None, typer.Option("--starts-after", metavar="TIME", help="Earliest start, such as 2027-01-31.")
    ] = None,
    ends_before: Annotated[str | None, typer.Option("--ends-before", metavar="TIME", help="Latest end.")] = None,
    only_list: Annotated[bool, typer.Option("--list", help="Show what is on offer and buy nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Buy the cheapest without asking; needs --max-price.")] = False,
    max_price: Annotated[
        str | None, typer.Option("--max-price", metavar="USD", help="Highest price of the whole block, in US dollars.")
    ] = None,
    region: RegionOption = None,
    inventories: InventoriesOption = DEFAULT_INVENTORIES,
    as_json: JsonOption = False,
) -> None:
    """Find a capacity block, buy it once, and hand it to Terraform.

    A block is paid for at once and cannot be given back, so it is bought only after its number and price were typed, or
    with --yes --max-price. Its id goes to inventories/ENV/reservation.auto.tfvars.json, which `make provision` reads.
    Where ENV already has a block that has not ended, it is written there again and nothing is bought: this command may
    be repeated, also after it was killed. Exit code 1: nothing suitable on offer, too expensive, or not confirmed.

    Example: coderack fleet reserve --env aws --region us-west-2 --zone us-west-2a --days 7 --max-price 45000 --yes
    """
    with outcomes():
        limit = _checked(count, days, yes=yes, only_list=only_list, max_price=max_price, as_json=as_json)
        wish = _wish(instance_type, count, days, starts_after, ends_before)
        directory = inventory.hosts_file(inventories, env).parent
        region = region_of(_fleet(directory), region)
        with files.lock(directory / ".reservation.lock"):
            client = aws.client("ec2", region)
            if not only_list:
                _check_region(directory, client.meta.region_name)
            if not only_list and (block := _present(client, env, directory)):
                _report(block, directory, bought=False, as_json=as_json)
                return
            on_offer = reserving.offers(client, wish, zone)
            if only_list or not as_json:
                _show_offers(on_offer, env, as_json)
            if not on_offer:
                what = f"{count} x {instance_type} for {days} day(s){f' in {zone}' if zone else ''}"
                fail(
                    Exit.DOES_NOT_HOLD,
                    f"no capacity block on offer: {what}; try other --days, dates, zones or --region",
                )
            if only_list:
                return
            chosen = _cheapest(on_offer, limit) if limit is not None and yes else _confirmed(on_offer, limit)
            block = _bought(aws.client("ec2", region, attempts=1), chosen, env, directory)
            _report(block, directory, bought=True, as_json=as_json)


def reservations(
    env: Annotated[str | None, typer.Option("--env", metavar="ENV", help="Environment whose region is asked.")] = None,
    region: RegionOption = None,
    inventories: InventoriesOption = DEFAULT_INVENTORIES,
    as_json: JsonOption = False,
) -> None:
    """List the account's capacity reservations and blocks in a region, with the time left.

    AWS takes the nodes of a capacity block 30 minutes before its end.

    Example: coderack fleet reservations --env aws
    """
    with outcomes():
        directory = inventory.hosts_file(inventories, env).parent if env else None
        fleet = _fleet(directory) if directory else None
        found = reserving.held(aws.client("ec2", region_of(fleet, region)))
    now = datetime.datetime.now(datetime.UTC)
    if as_json:
        listed = [_plain(asdict(one)) | {"seconds_left": _seconds(one.left(now))} for one in found]
        print_json("coderack.fleet-reservations/1", {"reservations": listed})
    elif found:
        _print_held(found, now)
    else:
        typer.echo("no capacity reservation in this region")


def _checked(
    count: int, days: int, *, yes: bool, only_list: bool, max_price: str | None, as_json: bool
) -> Decimal | None:
    """The price limit, once all options hold together."""
    problems = []
    if count not in _COUNTS:
        problems.append(f"--count is {count}, wanted one of {', '.join(map(str, _COUNTS))}: AWS sells no others")
    if not (1 <= days <= 14 or (days % 7 == 0 and 14 < days <= _LONGEST_DAYS)):
        problems.append(
            f"--days is {days}, wanted 1 to 14, or a multiple of 7 up to {_LONGEST_DAYS}: AWS sells no others"
        )
    if yes and max_price is None:
        problems.append("--yes buys without asking and needs --max-price USD, the most that the block may cost")
    if as_json and not (yes or only_list):
        problems.append("--json cannot ask for a confirmation; add --list, or --yes --max-price USD")
    limit = None
    try:
        limit = None if max_price is None else Decimal(max_price)
        if limit is not None and not (limit.is_finite() and limit > 0):
            raise InvalidOperation
    except InvalidOperation:
        problems.append(f"--max-price is {max_price!r:.40}, wanted an amount of US dollars such as 1500")
    if problems:
        raise SpecError("reserve", tuple(problems))
    return limit


def _wish(
    instance_type: str, count: int, days: int, starts_after: str | None, ends_before: str | None
) -> dict[str, Any]:
    """Members of DescribeCapacityBlockOfferings."""
    wish = {"InstanceType": instance_type, "InstanceCount": count, "CapacityDurationHours": days * 24}
    ranges = (("StartDateRange", "--starts-after", starts_after), ("EndDateRange", "--ends-before", ends_before))
    return wish | {member: _time(option, text) for member, option, text in ranges if text is not None}


def _time(option: str, text: str) -> datetime.datetime:
    try:
        time = datetime.datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise SpecError(option, (f"is {text!r:.40}, wanted a time such as 2027-01-31 or 2027-01-31T11:30Z",)) from None


def _fleet(directory: Path) -> Fleet | None:
    """A block is reserved before there are machines, so the inventory may not be there yet."""
    try:
        return inventory.read(directory / "hosts.yml")
    except inventory.NoInventory:
        return None


def _present(client: Any, env: str, directory: Path) -> Held | None:
    """The block that `env` already has, written to its file; None when nothing was bought for it."""
    blocks = reserving.blocks_of(reserving.held(client), env)
    if len(blocks) > 1:
        ids = ", ".join(f"{one.id} ({one.state})" for one in blocks)
        typer.echo(f"coderack: {env} has several capacity blocks: {ids}; the one that ends first is used", err=True)
    if blocks:
        reserving.save(directory, blocks[0])
        return blocks[0]
    intent = reserving.read_intent(directory)
    if intent is not None:
        path = reserving.intent_file(directory)
        fail(
            Exit.UNKNOWN,
            f"{path}: {intent} had no result, and no block of {env} is listed.\n"
            "It may still appear: EC2 can take some minutes. Repeat this command then; if after 15 minutes neither it "
            "nor `coderack fleet reservations` shows the block, nothing was bought: remove the file and try again.",
        )
    return None


def _check_region(directory: Path, region: str) -> None:
    other = reserving.elsewhere(directory, region, datetime.datetime.now(datetime.UTC))
    if other is not None:
        path = reserving.reservation_file(directory)
        problem = (
            f"names {other}, and {region} is asked; give its --region (or AWS_REGION), or move the file away if the "
            "environment is to have a block in another region"
        )
        raise SpecError(str(path), (problem,))


def _cheapest(on_offer: list[Offer], limit: Decimal) -> Offer:
    first = on_offer[0]
    _check_price(first, limit)
    return first


def _check_price(offer: Offer, limit: Decimal) -> None:
    if offer.currency != _CURRENCY:
        problem = f"the price is in {offer.currency}, --max-price in {_CURRENCY}; buy without --max-price and confirm"
        fail(Exit.DOES_NOT_HOLD, f"nothing bought: {problem}")
    if offer.price > limit:
        fail(
            Exit.DOES_NOT_HOLD,
            f"nothing bought: the offer costs {offer.price} {offer.currency}, --max-price is {limit}",
        )


def _confirmed(on_offer: list[Offer], limit: Decimal | None) -> Offer:
    example = f"1 {on_offer[0].price}"
    typer.echo(
        f'To buy one, type its number and its price, such as "{example}"; anything else buys nothing: ', nl=False
    )
    words = (sys.stdin.readline() if sys.stdin else "").split()
    chosen = next((one for number, one in enumerate(on_offer, 1) if words == [str(number), str(one.price)]), None)
    if chosen is None:
        fail(Exit.DOES_NOT_HOLD, "nothing bought: number and price of an offer were not typed")
    if limit is not None:
        _check_price(chosen, limit)
    return chosen


def _bought(client: Any, offer: Offer, env: str, directory: Path) -> Held:
    try:
        block = reserving.buy(client, offer, env, directory, datetime.datetime.now(datetime.UTC))
    except aws.AwsError as error:
        if reserving.read_intent(directory) is not None:
            fail(
                Exit.UNKNOWN,
                f"{error}\nWhether the block was bought is not known. Repeat this command in some minutes.",
            )
        fail(Exit.UNKNOWN, f"nothing bought: {error}")
    try:
        reserving.save(directory, block)
    except OSError as error:
        remedy = "make room and repeat this command, which finds the block by its tag"
        fail(Exit.UNKNOWN, f"{block.id} IS BOUGHT, but its file cannot be written: {error}; {remedy}")
    return block


def _report(block: Held, directory: Path, *, bought: bool, as_json: bool) -> None:
    path = reserving.reservation_file(directory)
    if as_json:
        body = {"bought": bought, "path": str(path), "capacity": reserving.capacity(block)}
        print_json("coderack.fleet-reserve/1", body)
        return
    end = reserving.rfc3339(block.ends_at) if block.ends_at else "no end"
    verb = "bought" if bought else "already held, nothing bought:"
    typer.echo(f"{verb} {block.id}, {block.count} x {block.instance_type} in {block.zone} ({block.state}), until {end}")
    typer.echo(f"{path} written; `make provision` takes it from there")


def _show_offers(on_offer: list[Offer], env: str, as_json: bool) -> None:
    if as_json:
        print_json("coderack.fleet-offers/1", {"env": env, "offers": [_plain(asdict(one)) for one in on_offer]})
    elif on_offer:
        headings = ("no.", "zone", "nodes", "type", "from", "until", "days", "price", "per node and hour")
        rows = [
            (
                str(number),
                one.zone,
                str(one.count),
                one.instance_type,
                reserving.rfc3339(one.starts_at),
                reserving.rfc3339(one.ends_at),
                f"{one.hours / 24:g}",
                f"{one.price} {one.currency}",
                f"{one.price_per_node_hour:.2f}",
            )
            for number, one in enumerate(on_offer, 1)
        ]
        print_table(headings, rows)


def _print_held(found: list[Held], now: datetime.datetime) -> None:
    headings = ("id", "environment", "kind", "state", "nodes", "free", "type", "zone", "from", "until", "left")
    rows = [
        (
            one.id,
            one.env or "-",
            one.kind,
            one.state,
            str(one.count),
            str(one.free),
            one.instance_type,
            one.zone,
            reserving.rfc3339(one.starts_at) if one.starts_at else "-",
            reserving.rfc3339(one.ends_at) if one.ends_at else "-",
            _left(one, now),
        )
        for one in found
    ]
    print_table(headings, rows)


def _left(one: Held, now: datetime.datetime) -> str:
    left = one.left(now)
    if left is None or not one.counts:
        return "-"
    hours, minutes = divmod(int(left.total_seconds()) // 60, 60)
    return f"{hours // 24} d {hours % 24} h" if hours >= 48 else f"{hours} h {minutes:02} min"


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Times and amounts as JSON has them: text that loses nothing."""

    def text(value: object) -> str:
        return reserving.rfc3339(value) if isinstance(value, datetime.datetime) else str(value)

    plain: dict[str, Any] = json.loads(json.dumps(fields, default=text))
    return plain


def _seconds(left: datetime.timedelta | None) -> int | None:
    return None if left is None else int(left.total_seconds())
