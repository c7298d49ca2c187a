"""What the store says of its folders: verified, missing, short, another revision, in use; and what it lets go."""

import json
from pathlib import Path

import pytest

from coderack.spec.checked import SpecError
from coderack.weights import store
from coderack.weights import verify as room
from coderack.weights.manifest import check_paths, parse, render
from coderack.weights.store import Model, NotKnown, Wrong

from .program import run
from .weights import COMMIT, NAME, OLD, content, manifest_of, published, write

SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def truth() -> dict[str, bytes]:
    return content(shards=2, size=10_000)


@pytest.fixture
def model(tmp_path: Path, truth: dict[str, bytes]) -> Model:
    return published(tmp_path / "store", truth)


def check(folder: Path, revision: str = COMMIT, *more: str) -> tuple[int, str]:
    code, out, err = run("weights", "check", str(folder), "--revision", revision, *more)
    return code, out + err


def test_a_verified_folder_passes_through_the_link_that_profiles_name(model: Model, tmp_path: Path) -> None:
    link = tmp_path / "served"
    link.symlink_to(model.current)
    code, said = check(link)
    assert code == 0
    assert f"revision {COMMIT}, 4 files" in said


def test_a_missing_file_is_named(model: Model) -> None:
    (model.current / SHARD).unlink()
    code, said = check(model.current)
    assert code == 1
    assert f"{SHARD} is missing; wanted: 10000 bytes" in said


def test_a_short_file_is_named_with_both_sizes(model: Model, truth: dict[str, bytes]) -> None:
    (model.current / SHARD).write_bytes(truth[SHARD][:-1])
    code, said = check(model.current)
    assert code == 1
    assert f"{SHARD} has 9999 bytes, wanted 10000" in said


def test_another_revision_is_named_with_the_wanted_one(model: Model) -> None:
    code, said = check(model.current, OLD)
    assert code == 1
    assert f"is revision {COMMIT}, wanted {OLD}" in said


def test_another_manifest_than_the_pinned_one_does_not_pass(model: Model) -> None:
    assert check(model.current, COMMIT, "--manifest-sha256", "0" * 64)[0] == 1


def test_a_manifest_that_was_edited_after_the_verification_does_not_pass(model: Model, truth: dict[str, bytes]) -> None:
    edited = manifest_of({**truth, SHARD: truth[SHARD][:-1] + b"!"})
    (model.current / "coderack-manifest.json").write_text(render(edited))
    code, said = check(model.current)
    assert code == 1
    assert "it was changed" in said


def test_a_store_whose_disk_is_empty_after_a_stop_is_said_to_be_missing(model: Model, tmp_path: Path) -> None:
    link = tmp_path / "served"
    link.symlink_to(tmp_path / "gone" / "current")
    code, said = check(link)
    assert code == 1
    assert "is not there (it leads to" in said


def test_a_folder_that_nobody_verified_says_how_to(tmp_path: Path, truth: dict[str, bytes]) -> None:
    write(tmp_path / "image", truth)
    code, said = check(tmp_path / "image", COMMIT, "--state", str(tmp_path / "state"))
    assert code == 1
    assert "has never been verified" in said
    assert "coderack weights manifest" in said


def test_weights_of_an_image_are_held_to_what_they_were_at_first_sight(tmp_path: Path, truth: dict[str, bytes]) -> None:
    folder, state = write(tmp_path / "image", truth), ["--state", str(tmp_path / "state")]
    before = sorted(folder.rglob("*"))
    record = ["weights", "manifest", str(folder), "--revision", "lab-1", "--record", *state]
    assert run(*record)[0] == 0
    assert check(folder, "lab-1", *state)[0] == 0
    # The image's folder may be read-only.
    assert sorted(folder.rglob("*")) == before
    (folder / SHARD).write_bytes(b"x" * 10_000)
    code, _, err = run(*record)
    assert code == 1
    assert "--replace" in err
    assert run(*record, "--replace")[0] == 0


def test_verify_finds_one_flipped_bit(model: Model, truth: dict[str, bytes]) -> None:
    (model.current / SHARD).write_bytes(truth[SHARD][:-1] + bytes([truth[SHARD][-1] ^ 1]))
    code, _, err = run("weights", "verify", str(model.current))
    assert code == 1
    assert f"{SHARD} has SHA-256" in err


def test_verify_finds_a_file_that_is_in_no_manifest(model: Model) -> None:
    (model.current / "model-00003-of-00002.safetensors").write_bytes(b"stray")
    code, _, err = run("weights", "verify", str(model.current))
    assert code == 1
    assert "is in no manifest" in err


def test_quick_reads_only_what_looks_different(model: Model, truth: dict[str, bytes]) -> None:
    (model.current / SHARD).touch()
    code, out, _ = run("weights", "verify", str(model.current), "--quick", "--json")
    answer = json.loads(out)
    assert (code, answer["bytes_read"]) == (0, 10_000)
    assert answer["bytes_passed_over"] == sum(map(len, truth.values())) - 10_000


def test_without_quick_everything_is_read(model: Model, truth: dict[str, bytes]) -> None:
    assert room.verify(model.current).read == sum(map(len, truth.values()))


def test_only_a_verified_revision_can_become_current(model: Model, truth: dict[str, bytes]) -> None:
    write(model.revision(OLD), truth)
    with pytest.raises(Wrong, match="never been verified"):
        store.use(model, OLD)
    assert model.current_revision() == COMMIT


def test_current_that_is_a_folder_is_not_replaced(model: Model) -> None:
    model.current.unlink()
    model.current.mkdir()
    with pytest.raises(Wrong, match="is no link"):
        store.use(model, COMMIT)


def test_prune_names_first_and_removes_only_when_told_to(model: Model, truth: dict[str, bytes]) -> None:
    published(model.store, truth, OLD, current=False)
    model.partial("2" * 40).mkdir()
    words = ["weights", "prune", NAME, "--store", str(model.store)]
    code, out, _ = run(*words)
    assert code == 0
    assert f"would remove {OLD}" in out
    assert model.revisions() == [OLD, COMMIT]
    assert run(*words, "--yes")[0] == 0
    assert (model.revisions(), model.partials()) == ([COMMIT], [])


def test_prune_never_takes_the_current_one_even_by_name(model: Model) -> None:
    code, _, err = run("weights", "prune", NAME, COMMIT, "--yes", "--store", str(model.store))
    assert code == 1
    assert "it is the current one" in err
    assert model.revisions() == [COMMIT]


def test_prune_leaves_a_revision_that_a_process_reads(model: Model, truth: dict[str, bytes]) -> None:
    published(model.store, truth, OLD, current=False)
    with (model.revision(OLD) / SHARD).open("rb"):
        code, out, _ = run("weights", "prune", NAME, "--yes", "--store", str(model.store))
    assert code == 0
    assert f"kept {OLD}" in out
    assert "reads it" in out


def test_a_process_whose_files_cannot_be_seen_leaves_use_unknown(tmp_path: Path) -> None:
    process = tmp_path / "proc" / "77"
    process.mkdir(parents=True)

    class Hidden(type(process)):  # type: ignore[misc]
        def read_text(self, *_: object, **__: object) -> str:
            raise PermissionError

    with pytest.raises(NotKnown, match="process 77 cannot be seen"):
        store.in_use(tmp_path, Hidden(tmp_path / "proc"))


def test_list_shows_revisions_what_is_current_and_what_is_half_fetched(model: Model, truth: dict[str, bytes]) -> None:
    published(model.store, truth, OLD, current=False)
    (model.revision(OLD) / SHARD).unlink()
    model.partial("2" * 40).mkdir()
    code, out, _ = run("weights", "list", "--store", str(model.store), "--json")
    rows = {row["revision"]: row for row in json.loads(out)["revisions"]}
    assert code == 0
    assert rows[COMMIT]["current"]
    assert rows[COMMIT]["state"].startswith("verified 20")
    assert "is missing" in rows[OLD]["state"]
    assert rows[f"{'2' * 40}.partial"]["state"] == "half fetched"


def test_a_store_that_is_not_mounted_is_not_known(tmp_path: Path) -> None:
    code, _, err = run("weights", "list", "--store", str(tmp_path / "none"))
    assert code == 3
    assert "Is its disk mounted?" in err


def test_a_manifest_is_the_same_text_and_digest_however_its_files_are_ordered(truth: dict[str, bytes]) -> None:
    forward = manifest_of(truth)
    backward = manifest_of(dict(reversed(truth.items())))
    assert render(forward) == render(backward)
    assert parse(render(forward), "test") == forward


@pytest.mark.parametrize("address", ["0.0.0.0", "8.8.8.8", "gpu-a", "::"])
def test_serving_on_anything_but_one_private_address_is_refused(model: Model, tmp_path: Path, address: str) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-the-day")
    words = ["weights", "serve", str(model.current), "--address", address, "--token-file", str(token)]
    assert run(*words)[0] == 2


def test_an_empty_token_is_refused(model: Model, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("\n")
    words = ["weights", "serve", str(model.current), "--address", "127.0.0.1", "--token-file", str(token)]
    code, _, err = run(*words)
    assert code == 2
    assert "holds no token" in err


@pytest.mark.parametrize(
    "torn",
    ["", '{"schema": "coderack.weights-veri', "[" * 100_000, '{"schema": "coderack.weights-verified/2"}', "\0" * 300],
)
def test_a_record_that_a_disk_lost_proves_nothing_and_says_how_to_get_another(model: Model, torn: str) -> None:
    (model.current / store.RECORD).write_text(torn)
    code, said = check(model.current)
    assert code == 1
    assert f"{store.RECORD}: " in said
    assert "coderack weights fetch --repair" in said


def test_a_torn_record_of_an_image_is_told_how_to_be_made_anew(tmp_path: Path, truth: dict[str, bytes]) -> None:
    folder, state = write(tmp_path / "image", truth), tmp_path / "state"
    room.record(folder, manifest_of(truth), state=state)
    (store.kept_in(folder, state) / store.RECORD).write_text("{")
    code, said = check(folder, COMMIT, "--state", str(state))
    assert code == 1
    assert "coderack weights manifest --record --replace" in said


def test_a_link_that_leads_to_itself_is_named(tmp_path: Path) -> None:
    link = tmp_path / "loop"
    link.symlink_to(link)
    code, said = check(link)
    assert code == 1
    assert f"{link} is a link that leads to itself" in said


def test_what_a_killed_removal_left_is_listed_and_pruned(model: Model) -> None:
    left = write(model.folder / f"{store.REMOVING}{OLD}", {SHARD: b"x" * 1000})
    assert "half removed" in run("weights", "list", "--store", str(model.store))[1]
    code, out, _ = run("weights", "prune", NAME, "--yes", "--store", str(model.store))
    assert code == 0
    assert f"removed {left.name}" in out
    assert not left.exists()


def test_a_manifest_of_very_many_files_is_refused_before_it_is_looked_into() -> None:
    with pytest.raises(SpecError, match="has 100001 files; wanted: those of a model, 100000 at most"):
        parse('{"files": [' + "{}," * 100_000 + "{}]}", "x")


def test_of_many_wrong_entries_the_first_are_named_and_the_others_counted() -> None:
    with pytest.raises(SpecError) as caught:
        parse('{"model": "m", "revision": "r", "files": [' + "{}," * 99 + "{}]}", "x")
    assert len(caught.value.problems) == 11
    assert caught.value.problems[-1].endswith("problems more")


def test_a_file_in_the_place_of_a_folder_is_found_at_any_depth() -> None:
    with pytest.raises(ValueError, match="path a/b is a file and the folder of a/b/c/d"):
        check_paths(["a/b/c/d", "a/b"])


def test_a_link_to_a_folder_is_a_file_that_nobody_has_verified(model: Model, tmp_path: Path) -> None:
    (model.current / "more").symlink_to(tmp_path)
    code, _, err = run("weights", "verify", str(model.current))
    assert code == 1
    assert "more is in no manifest" in err


def test_prune_keeps_the_current_one_also_when_its_repair_was_killed(model: Model) -> None:
    model.revision(COMMIT).rename(model.partial(COMMIT))
    code, out, _ = run("weights", "prune", NAME, "--yes", "--store", str(model.store))
    assert code == 0
    assert "half repaired" in out
    assert (model.partial(COMMIT) / SHARD).exists()
