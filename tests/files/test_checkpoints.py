"""The store by itself: retention, best, damage. Resuming from it is in test_resume.py."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regimen import trees
from regimen.errors import StorageError
from regimen.files.checkpoint import SCHEMA, Checkpoints, digest, is_current, read, verify
from regimen.files.sealed import seal, unseal


def tree(value: float):
    return {"a": {"x": jnp.full(3, value)}, "key": jax.random.key(int(value)), "none": jnp.zeros((0, 2))}


def write_policy(path):
    path.mkdir()
    (path / "config.json").write_text("{}")


def save(store: Checkpoints, step: int, **more):
    return store.save(step, tree(step), {"run": {"step": step}}, write_policy, **more)


@pytest.fixture
def store(tmp_path):
    return Checkpoints(tmp_path / "checkpoints", keep=2, keep_best=1)


def test_a_state_comes_back_bit_for_bit(store):
    save(store, 7)
    arrays, meta, path = store.load("latest", pytest.fail)
    back = trees.unflatten(tree(0), arrays, "it")
    np.testing.assert_array_equal(back["a"]["x"], tree(7)["a"]["x"])
    assert jnp.array_equal(jax.random.key_data(back["key"]), jax.random.key_data(jax.random.key(7)))
    assert meta["run"] == {"step": 7} and path.name == "7" and back["none"].shape == (0, 2)


ODD = {
    "a nan with a payload, a negative zero": np.array([0x7FC12345, 0x80000000], np.uint32).view(np.float32),
    "bits": np.array([True, False, True]),
    "a scalar": np.array(3, np.int32),
    "wide": np.array([2**63 - 1, -(2**63)]),
    "brain": np.arange(5).astype(jnp.bfloat16),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "every other": np.arange(8)[::2],
    "nothing": np.zeros((3, 0), np.uint8),
}


@pytest.mark.parametrize("name", ODD)
def test_every_kind_of_array_comes_back_with_its_bytes(store, name):
    store.save(1, {"x": ODD[name]}, {"run": 1}, write_policy)
    back = store.load("latest", pytest.fail)[0]["x"]
    assert back.dtype == ODD[name].dtype and back.shape == ODD[name].shape and back.tobytes() == ODD[name].tobytes()


def test_the_newest_are_kept(store):
    for step in (1, 2, 3, 4):
        save(store, step)
    assert store.steps() == [3, 4]


def test_best_and_final_are_kept_beside_them(store):
    save(store, 1, best=10.0)
    for step in (2, 3, 4):
        save(store, step)
    save(store, 5, final=True)
    save(store, 6)
    save(store, 7)
    assert store.steps() == [1, 5, 6, 7]
    assert store.find("best").name == "1" and store.find("final").name == "5" and store.find("latest").name == "7"
    assert os.readlink(store.path / "best") == "1" and (store.path / "best" / "meta.json").exists()


def test_a_new_best_replaces_the_old(store):
    for step, score in ((1, 1.0), (2, None), (3, 2.0), (4, None), (5, None)):
        save(store, step, best=score)
    assert store.find("best").name == "3" and 1 not in store.steps()
    assert (store.path / "best").resolve().name == "3"


def test_several_best_are_kept(tmp_path):
    store = Checkpoints(tmp_path, keep=1, keep_best=2)
    for step in range(1, 6):
        save(store, step, best=float(step))
    save(store, 6)
    assert store.steps() == [4, 5, 6]


def test_best_and_final_without_one_are_the_latest(store):
    save(store, 3)
    assert store.find("best").name == store.find("final").name == "3"


def test_a_moment_is_written_once(store):
    first = save(store, 1)
    stamp = (first / "meta.json").stat().st_mtime_ns
    save(store, 1, best=1.0)
    assert (first / "meta.json").stat().st_mtime_ns == stamp and store.find("best").name == "1"
    assert not is_current(first, {"run": {"step": 2}})


def test_an_unknown_step_names_the_nearest(store):
    save(store, 10)
    save(store, 20)
    with pytest.raises(StorageError, match="no checkpoint at step 12; nearest: 10; there are: 10, 20"):
        store.find("12")
    with pytest.raises(StorageError, match="'newest' is none of best, final, latest or a step"):
        store.find("newest")
    with pytest.raises(StorageError, match="has no checkpoint"):
        Checkpoints(store.path / "nowhere").find("latest")


def truncate_state(path):
    file = path / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def flip_a_bit(path):
    file = path / "state.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def newer_schema(path):
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(seal(unseal(meta, "it") | {"schema": SCHEMA + 1})))


def without_digest(path):
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(unseal(meta, "it")))


def another_counter(path):
    text = (path / "meta.json").read_text()
    (path / "meta.json").write_text(text.replace('"step": 2', '"step": 3'))


def as_if_older(path):
    """One bit from 3: what is older has no digest."""
    text = (path / "meta.json").read_text()
    (path / "meta.json").write_text(text.replace(f'"schema": {SCHEMA}', f'"schema": {SCHEMA - 1}'))


DAMAGE = {
    "truncated": (truncate_state, "is damaged"),
    "bit flip": (flip_a_bit, "is damaged"),
    "no state": (lambda path: (path / "state.safetensors").unlink(), "is damaged"),
    "torn meta.json": (lambda path: (path / "meta.json").write_text('{"schema": 1, "fi'), "meta.json is damaged"),
    "no meta.json": (lambda path: (path / "meta.json").unlink(), "cannot read .*meta.json: No such file"),
    "meta.json of nothing": (lambda path: (path / "meta.json").write_text("[]"), "meta.json is damaged"),
    "a deep meta.json": (lambda path: (path / "meta.json").write_text("[" * 200_000), "meta.json is damaged"),
    "bytes": (lambda path: (path / "meta.json").write_bytes(b"\xff\xfe{}"), "meta.json is damaged"),
    "another counter": (another_counter, "meta.json is damaged: it has changed"),
    "another schema": (as_if_older, "meta.json is damaged: it has changed"),
    "no digest": (without_digest, "meta.json is damaged: it has changed"),
    "newer": (newer_schema, f"written by a newer version of regimen .schema {SCHEMA + 1}"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_and_latest_falls_back(store, damage):
    hurt, message = DAMAGE[damage]
    save(store, 1)
    hurt(save(store, 2))
    with pytest.raises(StorageError, match=message):
        store.load("2", pytest.fail)
    warnings: list[str] = []
    _, meta, path = store.load("latest", warnings.append)
    assert path.name == "1" and meta["run"] == {"step": 1}
    assert len(warnings) == 1 and "using the checkpoint at step 1 instead" in warnings[0]


def test_an_orbax_checkpoint_is_refused_in_one_line_that_says_who_reads_it(store):
    """Those before it are as old, so nothing is said about them."""
    for step in (1, 2):
        path = save(store, step)
        meta = json.loads((path / "meta.json").read_text())
        (path / "state.safetensors").unlink()
        (path / "state").mkdir()
        (path / "state" / "_METADATA").write_text("{}")
        files = {"policy/config.json": digest(path / "policy" / "config.json")}
        files["state/_METADATA"] = digest(path / "state" / "_METADATA")
        (path / "meta.json").write_text(json.dumps(unseal(meta, "it") | {"schema": 1, "files": files}))
    for which in ("latest", "best", "1"):
        with pytest.raises(
            StorageError, match=r"earlier version of regimen; regimen 0\.1 reads it .schema 1"
        ) as refusal:
            store.load(which, pytest.fail)
        assert "\n" not in str(refusal.value)
    assert verify(store.find("latest"))["run"] == {"step": 2}, "its policy can be loaded"


def test_without_a_whole_checkpoint_there_is_nothing_to_load(store):
    truncate_state(save(store, 1))
    with pytest.raises(StorageError, match="is damaged"):
        store.load("latest", pytest.fail)


def test_a_killed_save_leaves_the_previous_one(store):
    save(store, 1)
    half = store.path / ".2.tmp"
    half.mkdir()
    (half / "meta.json").write_text("{}")
    assert store.steps() == [1] and store.load("latest", pytest.fail)[2].name == "1"
    save(store, 2)
    assert not half.exists()


def test_forgetting_what_came_later(store):
    for step, score in ((1, 1.0), (2, 2.0)):
        save(store, step, best=score, final=step == 2)
    store = Checkpoints(store.path, keep=5, keep_best=5)
    save(store, 3, best=3.0, final=True)
    store.forget_after(2)
    assert store.steps() == [1, 2] and store.index() == {"best": {"2": 2.0}, "final": None}
    assert (store.path / "best").resolve().name == "2"
    store.forget_after(0)
    assert store.steps() == [] and not (store.path / "best").is_symlink()


FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
import regimen.runs.session
from regimen.errors import StorageError
from regimen.files.checkpoint import Checkpoints

assert not {"orbax", "tensorstore"} & set(sys.modules), "they would cost every start their import"
store = Checkpoints(Path(sys.argv[1]))
def save(step, n):
    store.save(step, {"x": np.arange(n, dtype=np.float64)}, {"run": step}, lambda path: path.mkdir())
save(1, 10)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    save(2, 10**6)
except StorageError as error:
    print(error)
"""


def test_a_disk_that_takes_no_more_is_one_line_and_the_last_checkpoint_stays(tmp_path):
    """A limit on the size of files stands in for a full disk: safetensors then fails in its own way."""
    done = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"cannot write the checkpoint {tmp_path / '2'}: ") and done.stdout.count("\n") == 1
    assert Checkpoints(tmp_path).steps() == [1] and not list(tmp_path.glob(".*.tmp"))
    np.testing.assert_array_equal(read(tmp_path / "1")[0]["x"], np.arange(10))


def test_a_tree_that_does_not_fit_is_refused_by_name():
    arrays = trees.flatten(tree(1))
    with pytest.raises(StorageError, match=r"it: 'a/x' has shape \(3,\) there and \(4,\) here"):
        trees.unflatten({**tree(0), "a": {"x": jnp.zeros(4)}}, arrays, "it")
    with pytest.raises(StorageError, match="lacks 'b'"):
        trees.unflatten({**tree(0), "b": jnp.zeros(1)}, arrays, "it")
    with pytest.raises(StorageError, match="it has 'a/x', which is not used here"):
        trees.unflatten({"key": tree(0)["key"], "none": tree(0)["none"]}, arrays, "it")
