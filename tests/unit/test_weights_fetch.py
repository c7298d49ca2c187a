"""What a fetch does with sources that are slow, wrong, short or strange, and with a store that is not what it was."""

import json
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from coderack.fleet import files
from coderack.weights import store
from coderack.weights.manifest import FILE_NAME
from coderack.weights.serve import Server
from coderack.weights.store import Model, NotKnown, Wrong

from .program import run
from .weights import (
    COMMIT,
    NAME,
    OLD,
    REPOSITORY,
    Served,
    content,
    from_hub,
    git_name,
    hub,
    manifest_of,
    published,
    upload,
    write,
)

SHARD = "model-00001-of-00002.safetensors"
TOKEN = "a-token-of-the-day"


@pytest.fixture
def served() -> Iterator[Served]:
    with hub(Served(content(shards=2, size=100_000))) as running:
        yield running


def words(root: Path, served: Served, revision: str = COMMIT) -> list[str]:
    source = ["--hub", REPOSITORY, "--endpoint", served.url, "--store", str(root), "--keep-free", "0"]
    return ["weights", "fetch", NAME, revision, *source]


def test_a_fetch_ends_with_the_files_their_manifest_and_the_link(served: Served, tmp_path: Path) -> None:
    code, out, err = run(*words(tmp_path, served), "--use", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["manifest_sha256"] == manifest_of(served.files).digest
    assert answer["network_bytes"] == sum(map(len, served.files.values()))
    current = tmp_path / NAME / "current"
    assert current.readlink() == Path(COMMIT)
    assert {path: (current / path).read_bytes() for path in served.files} == served.files
    assert not Model(tmp_path, NAME).partials()


def test_a_second_fetch_asks_nobody_and_reads_no_shard(served: Served, tmp_path: Path) -> None:
    from_hub(served.url, tmp_path)
    asked = len(served.asked)
    assert from_hub(served.url, tmp_path).already_there
    assert len(served.asked) == asked


def test_a_branch_is_refused_with_the_commit_that_it_is_today(served: Served, tmp_path: Path) -> None:
    code, _, err = run(*words(tmp_path, served, "main"))
    assert code == 2
    assert "'main' is a branch" in err
    assert COMMIT in err
    assert not (tmp_path / NAME).exists()


def test_a_commit_that_the_hub_does_not_know_is_bad_input(served: Served, tmp_path: Path) -> None:
    code, _, err = run(*words(tmp_path, served, "2" * 40))
    assert code == 2
    assert "HTTP 404" in err


def test_too_little_space_is_refused_before_the_first_byte_with_both_amounts(served: Served, tmp_path: Path) -> None:
    code, _, err = run(*words(tmp_path, served), "--keep-free", "1e9")
    assert code == 1
    assert "GB free; wanted: 0.0 GB for" in err
    assert "1000000000.0 GB to stay free" in err
    assert served.sent.total() == 0


def test_a_shard_that_came_wrong_once_is_fetched_again(served: Served, tmp_path: Path) -> None:
    served.corrupt[SHARD] = 1
    done = from_hub(served.url, tmp_path)
    assert done.refetched == (SHARD,)
    assert served.sent[SHARD] == 2 * len(served.files[SHARD])
    assert (done.folder / SHARD).read_bytes() == served.files[SHARD]


def test_a_shard_that_came_wrong_twice_ends_the_fetch_with_its_name(served: Served, tmp_path: Path) -> None:
    served.corrupt[SHARD] = 2
    code, _, err = run(*words(tmp_path, served), "--use")
    assert code == 1
    assert SHARD in err
    assert "twice" in err
    model = Model(tmp_path, NAME)
    assert model.revisions() == []
    assert model.current_revision() is None


def test_a_small_file_that_came_wrong_is_noticed_by_gits_name_for_it(served: Served, tmp_path: Path) -> None:
    served.corrupt["config.json"] = 2
    with pytest.raises(Wrong, match=r"config\.json: checksum"):
        from_hub(served.url, tmp_path)


def test_answers_that_end_early_and_servers_that_are_busy_are_asked_again(served: Served, tmp_path: Path) -> None:
    served.cut, served.busy = Counter({SHARD: 2}), Counter({"config.json": 2})
    done = from_hub(served.url, tmp_path)
    # What had come before the cut did not come again.
    assert served.sent[SHARD] == len(served.files[SHARD])
    assert done.refetched == ()


def test_a_server_that_stays_busy_is_not_known_and_keeps_what_is_there(served: Served, tmp_path: Path) -> None:
    served.busy[SHARD] = 99
    with pytest.raises(NotKnown, match="4 times in a row"):
        from_hub(served.url, tmp_path, parallel=1)
    assert Model(tmp_path, NAME).partials() == [f"{COMMIT}.partial"]


def test_a_server_without_ranges_costs_bytes_and_no_mistake(served: Served, tmp_path: Path) -> None:
    served.ranges = False
    write(tmp_path / NAME / f"{COMMIT}.partial", {SHARD: served.files[SHARD][:7]})
    done = from_hub(served.url, tmp_path)
    assert (done.folder / SHARD).read_bytes() == served.files[SHARD]
    assert done.refetched == ()


def test_a_server_whose_answers_never_end_is_hung_up_on_when_the_file_is_whole(served: Served, tmp_path: Path) -> None:
    served.endless = True
    assert (from_hub(served.url, tmp_path).folder / SHARD).read_bytes() == served.files[SHARD]


def test_a_partial_file_goes_on_where_it_ends(served: Served, tmp_path: Path) -> None:
    write(tmp_path / NAME / f"{COMMIT}.partial", {SHARD: served.files[SHARD][:60_000], "stray.safetensors": b"old"})
    done = from_hub(served.url, tmp_path)
    assert served.sent[SHARD] == 40_000
    assert not (done.folder / "stray.safetensors").exists()


def test_files_are_resumed_where_the_hub_sends_us_and_the_token_stays_with_the_hub(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    write(tmp_path / NAME / f"{COMMIT}.partial", {SHARD: served.files[SHARD][:60_000]})
    with hub(Served(served.files, elsewhere=served.url)) as front:
        assert run(*words(tmp_path, front))[0] == 0
    assert served.sent[SHARD] == 40_000
    assert set(front.tokens) == {"Bearer hf_secret"}
    assert set(served.tokens) == {""}


def test_a_list_without_checksums_is_not_fetched_from(served: Served, tmp_path: Path) -> None:
    served.checksums = False
    with pytest.raises(NotKnown, match="no checksum for model-00001"):
        from_hub(served.url, tmp_path)
    assert served.sent.total() == 0


@pytest.mark.parametrize("path", ["../../etc/cron.d/x", "/etc/passwd", "a//b", "a/../b", "x\ny", "config.json"])
def test_a_list_with_a_path_that_leads_elsewhere_is_refused_before_anything_is_written(
    served: Served, tmp_path: Path, path: str
) -> None:
    one = {"rfilename": path, "size": 1, "blobId": git_name(b"x")}
    served.listing = {"sha": COMMIT, "siblings": [{**one, "rfilename": "config.json"}, one]}
    with pytest.raises(NotKnown):
        from_hub(served.url, tmp_path)
    assert served.sent.total() == 0


def test_a_manifest_other_than_the_pinned_one_is_refused_before_the_shards_come(served: Served, tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="pinned is"):
        from_hub(served.url, tmp_path, digest="f" * 64)
    assert served.sent[SHARD] == 0


def test_two_fetches_of_a_model_at_once_are_refused(served: Served, tmp_path: Path) -> None:
    model = Model(tmp_path, NAME)
    with model.locked(), pytest.raises(files.Locked, match="another run"):
        from_hub(served.url, tmp_path)


def test_a_finished_revision_that_lost_a_file_gets_only_that_file_again(served: Served, tmp_path: Path) -> None:
    folder = from_hub(served.url, tmp_path).folder
    (folder / SHARD).unlink()
    before = served.sent.total()
    from_hub(served.url, tmp_path)
    assert served.sent.total() - before == len(served.files[SHARD])
    store.check(folder, COMMIT)


def test_repair_finds_what_looks_right_and_is_not(served: Served, tmp_path: Path) -> None:
    folder = from_hub(served.url, tmp_path).folder
    (folder / SHARD).write_bytes(b"x" * len(served.files[SHARD]))
    done = from_hub(served.url, tmp_path, repair=True)
    assert done.refetched == (SHARD,)
    assert (folder / SHARD).read_bytes() == served.files[SHARD]


def test_files_are_readable_by_the_engines_own_user_whatever_the_umask(served: Served, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        folder = from_hub(served.url, tmp_path / "store").folder
    finally:
        os.umask(before)
    above = (folder, folder.parent, tmp_path / "store")
    assert {oct(place.stat().st_mode & 0o777) for place in above} == {"0o755"}
    assert {oct((folder / path).stat().st_mode & 0o777) for path in served.files} == {"0o644"}
    assert oct((folder / "original").stat().st_mode & 0o777) == "0o755"


def test_what_is_no_hub_is_not_known(served: Served, tmp_path: Path) -> None:
    served.listing = ["log in first"]
    with pytest.raises(NotKnown, match="answer is not the Hub's"):
        from_hub(served.url, tmp_path)


def test_a_hub_that_cannot_be_reached_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(NotKnown, match="cannot be reached"):
        from_hub("http://127.0.0.1:1", tmp_path)


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
def test_a_name_that_no_host_can_have_is_one_that_cannot_be_reached(host: str, tmp_path: Path) -> None:
    with pytest.raises(NotKnown, match="cannot be reached"):
        from_hub(f"http://{host}:80", tmp_path)
    token = tmp_path / "token"
    token.write_text("t" * 20)
    peer = ("--peer", f"http://{host}:80", "--token-file", str(token), "--manifest-sha256", "0" * 64)
    code, _, err = run("weights", "fetch", NAME, COMMIT, "--store", str(tmp_path), *peer)
    assert code == 3
    assert "cannot be reached" in err


def test_a_record_that_a_disk_lost_is_made_anew_from_the_bytes_that_are_there(served: Served, tmp_path: Path) -> None:
    assert run(*words(tmp_path, served))[0] == 0
    (tmp_path / NAME / COMMIT / store.RECORD).write_text("")
    code, out, _ = run(*words(tmp_path, served), "--json")
    assert code == 0
    assert json.loads(out)["network_bytes"] == 0


def test_a_folder_in_the_place_of_current_is_named_also_when_nothing_was_to_be_switched(
    served: Served, tmp_path: Path
) -> None:
    (tmp_path / NAME / "current").mkdir(parents=True)
    code, _, err = run(*words(tmp_path, served))
    assert code == 1
    assert "current is no link" in err


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ([], "nothing given"),
        (["--hub", "a/b", "--s3", "s3://bucket/x"], "--hub and --s3 given"),
        (["--hub", "no-slash"], "owner/name"),
        (["--s3", "bucket/x"], "s3://bucket/folder"),
        (["--peer", "http://10.0.0.1:1"], "needs --manifest-sha256"),
        (["--hub", "a/b", "--endpoint", "file:///etc"], "http(s)://host"),
        (["--hub", "a/b", "--endpoint", "http://a b"], "http(s)://host"),
        (["--hub", "a/b", "--manifest-sha256", "abc"], "64 hexadecimal digits"),
        (["--hub", "a/b", "--token-file", "/nonexistent"], "cannot be read"),
    ],
)
def test_sources_that_cannot_be_meant_are_bad_input(extra: list[str], problem: str, tmp_path: Path) -> None:
    code, _, err = run("weights", "fetch", NAME, COMMIT, "--store", str(tmp_path), *extra)
    assert code == 2
    assert problem in err


@pytest.mark.parametrize("name", ["../x", "a/b", "", "current", "x.partial", "-x", "ü"])
def test_names_that_are_no_folder_of_the_store_are_bad_input(name: str, tmp_path: Path) -> None:
    code, _, _ = run("weights", "fetch", "--store", str(tmp_path), "--hub", "a/b", "--", name, COMMIT)
    assert code == 2
    assert list(tmp_path.iterdir()) == []


def test_another_node_copies_what_is_verified_here_and_a_stranger_does_not(tmp_path: Path) -> None:
    truth = content(shards=2, size=100_000)
    here = published(tmp_path / "a", truth)
    found = store.read_verified(here.current)
    server = Server("127.0.0.1", 0, found, TOKEN)
    served = threading.Thread(target=server.run, args=(0.4,))
    served.start()
    token, stranger = tmp_path / "token", tmp_path / "stranger"
    token.write_text(TOKEN)
    stranger.write_text("a-token-of-another-day")
    common = ["weights", "fetch", NAME, COMMIT, "--peer", f"http://127.0.0.1:{server.server_port}"]
    common += ["--store", str(tmp_path / "b"), "--keep-free", "0", "--manifest-sha256", found.manifest.digest]
    assert run(*common, "--token-file", str(stranger))[0] == 3
    write(tmp_path / "b" / NAME / f"{COMMIT}.partial", {SHARD: truth[SHARD][:60_000]})
    code, out, _ = run(*common, "--token-file", str(token), "--json")
    served.join()
    assert code == 0
    assert json.loads(out)["network_bytes"] == sum(map(len, truth.values())) - 60_000
    assert store.check(tmp_path / "b" / NAME / COMMIT, COMMIT).manifest == found.manifest


def test_a_copy_that_hangs_up_leaves_no_traceback_in_the_journal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = published(tmp_path, content(shards=1, size=1000))
    server = Server("127.0.0.1", 0, store.read_verified(here.current), TOKEN)
    served = threading.Thread(target=server.run, args=(0.3,))
    served.start()
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
        client.sendall(b"GET /")
        # Closed so, the kernel sends a reset.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    served.join()
    assert capfd.readouterr().err == ""


def test_a_hub_without_tls_is_not_told_to_be_trusted_for_its_list(served: Served, tmp_path: Path) -> None:
    assert "it comes without TLS" in from_hub(served.url, tmp_path).trusted


def test_another_node_with_another_manifest_is_refused(tmp_path: Path) -> None:
    here = published(tmp_path / "a", content(shards=1, size=1000))
    server = Server("127.0.0.1", 0, store.read_verified(here.current), TOKEN)
    threading.Thread(target=server.run, args=(0.2,), daemon=True).start()
    (tmp_path / "token").write_text(TOKEN)
    peer = ["--peer", f"http://127.0.0.1:{server.server_port}", "--token-file", str(tmp_path / "token")]
    code, _, err = run(
        "weights", "fetch", NAME, COMMIT, *peer, "--manifest-sha256", "0" * 64, "--store", str(tmp_path / "b")
    )
    assert code == 1
    assert "pinned is 000" in err


def test_a_tag_may_be_fetched_from_a_bucket_when_its_manifest_is_pinned_and_not_otherwise(tmp_path: Path) -> None:
    code, _, err = run(
        "weights", "fetch", NAME, "v1", "--s3", "s3://weights/x", "--store", str(tmp_path), "--region", "us-west-2"
    )
    assert code == 2
    assert "pin what is in the bucket with --manifest-sha256" in err


@pytest.mark.parametrize("damage", ["{", "[]", '{"schema": "coderack.weights-manifest/1", "files": []}'])
def test_a_manifest_in_the_store_that_is_none_proves_nothing(damage: str, tmp_path: Path) -> None:
    model = published(tmp_path, content(shards=1, size=1000))
    (model.current / FILE_NAME).write_text(damage)
    with pytest.raises(Wrong, match="coderack weights fetch --repair"):
        store.check(model.current, COMMIT)


def test_an_old_revision_stays_current_until_the_new_one_is_used(served: Served, tmp_path: Path) -> None:
    model = published(tmp_path, content(shards=1, size=1000), OLD)
    from_hub(served.url, tmp_path)
    assert model.current_revision() == OLD
    assert run("weights", "use", NAME, COMMIT, "--store", str(tmp_path))[0] == 0
    assert model.current_revision() == COMMIT


def test_a_dry_run_says_what_would_come_and_leaves_no_trace(served: Served, tmp_path: Path) -> None:
    code, out, _ = run(*words(tmp_path / "store", served), "--dry-run", "--use", "--json")
    assert code == 0
    assert json.loads(out)["bytes"] == sum(map(len, served.files.values()))
    assert not (tmp_path / "store").exists()
    assert run(*words(tmp_path / "store", served), "--dry-run", "--keep-free", "1e9")[0] == 1


@pytest.mark.usefixtures("aws")
def test_a_bucket_gives_what_its_manifest_says_and_nothing_where_there_is_none(tmp_path: Path) -> None:
    truth = content(shards=2, size=100_000)
    digest = upload(truth)
    source = ["--s3", f"s3://weights/{NAME}", "--region", "us-west-2", "--store", str(tmp_path), "--keep-free", "0"]
    write(tmp_path / NAME / f"{COMMIT}.partial", {SHARD: truth[SHARD][:60_000]})
    code, out, err = run("weights", "fetch", NAME, COMMIT, *source, "--manifest-sha256", digest, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["network_bytes"] == sum(map(len, truth.values())) - 60_000
    code, _, err = run("weights", "fetch", NAME, OLD, *source)
    assert code == 2
    assert f"{OLD}/coderack-manifest.json: is not there (HTTP 404)" in err
