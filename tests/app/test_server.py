"""The running app over HTTP: hostile uploads, hostile questions, closed doors, memory."""

import base64
import json
import socket
from urllib.parse import urlsplit

import pytest
from app_makers import Server, post, weights
from hostile import PATHS, all_uploads, noise, save
from PIL import Image

from mspcaps.app.uploads import MAX_TEXT_CHARS, MAX_UPLOAD_BYTES, PREFIX
from mspcaps.cli import main

pytestmark = pytest.mark.slow  # what they share takes seconds to set up

GROWTH = 560 << 20  # bytes that 200 hostile uploads may add to the server: one of 25 megapixels takes 475 MB
MODEL = "mspcaps_t · FashionMNIST · grey.safetensors"


@pytest.fixture(scope="module")
def picture(server: Server) -> str:
    status, reply = server.upload(save(noise(), "PNG"))
    assert status == 200
    return reply["picture"]


def alive(server: Server, picture: str) -> bool:
    return server.process.poll() is None and "It says" in server.ask(picture, MODEL, 0, 0, 0)


def test_two_hundred_hostile_uploads(server, picture):
    uploads = all_uploads()
    assert len(uploads) >= 200 and alive(server, picture)
    before = server.forget_peak()
    for name, data, good in uploads:
        status, reply = server.upload(data)
        assert status in (200, 413, 422), name
        assert good is None or good == (status == 200), f"{name}: {reply}"
        if status != 200:
            assert list(reply) == ["error"] and "\n" not in reply["error"] and "Traceback" not in reply["error"], name
    assert alive(server, picture)
    most = server.peak()
    assert most - before < GROWTH, f"{before >> 20} MB before, {most >> 20} MB at most"
    assert "Traceback" not in server.log.read_text()
    left = {path.name for path in server.log.parent.rglob("*") if path.is_file()}
    assert left == {"grey.safetensors", "quick.safetensors", "server.log"}, "uploads leave no file behind"


def bad_questions(picture: str) -> list[tuple[object, ...]]:
    one = PREFIX + base64.b64encode(save(Image.new("1", (3000, 3000)), "PNG")).decode()
    return [
        *((path, MODEL, 0, 0, 0) for path in PATHS),
        *((picture, path, 0, 0, 0) for path in PATHS),
        *((text, MODEL, 0, 0, 0) for text in (None, 5, [], {}, {"path": "/etc/passwd"}, [[None] * 9] * 9, one, PREFIX)),
        *((picture, MODEL, value, 0, 0) for value in (None, "5", 1e9, -181, [], {}, True, "NaN")),
        *((picture, MODEL, 0, value, 0) for value in (65, -1, "x", [1])),
        *((picture, MODEL, 0, 0, value) for value in (17, -0.5, "8/255", {"a": []})),
        ({"path": "http://127.0.0.1:1/", "meta": {"_type": "gradio.FileData"}}, MODEL, 0, 0, 0),
        ({"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, MODEL, 0, 0, 0),
        (PREFIX + "A" * MAX_TEXT_CHARS, MODEL, 0, 0, 0), (), (picture,), (picture, MODEL, 0, 0, 0, 0, 0),
    ]  # fmt: skip


def test_hostile_questions(server, picture):
    for values in bad_questions(picture):
        said = server.ask(*values)
        assert "It says" not in said or len(values) > 5, values
        assert said not in ("", "null") and "Traceback" not in said and "root:" not in said, values
        assert len(said) < 2000 or len(values) != 5, "Gradio answers the wrong number of values in many words"
    for body in (
        b"",
        b"{",
        b"[]",
        b'{"data": NaN}',
        b'{"data": 7}',
        b"\xff\xfe",
        b'{"data": [NaN, NaN, NaN, NaN, NaN]}',
    ):
        status, reply = post(f"{server.url}gradio_api/call/answer", body, "application/json")
        assert status in (200, 400, 422) and "Traceback" not in json.dumps(reply), body
    assert alive(server, picture)


def test_what_the_page_does_not_need_is_closed(server, picture):
    form = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nhello\r\n--x--\r\n'
    status, reply = post(f"{server.url}gradio_api/upload", form, "multipart/form-data; boundary=x")
    assert (status, list(reply)) == (404, ["error"])
    for place in (
        "gradio_api/file=/etc/passwd", "gradio_api/proxy=http://example.org/", "gradio_api/component_server",
        "monitoring", "gradio_api/vibe-code", "gradio_api/runs", "docs", "openapi.json", "gradio_api/deep_link",
        "file=/etc/passwd", "gradio_api/stream/x", "svelte/../../x", "../etc/passwd", "gradio_api/run/answer", "login",
        "picture/../config.py",
    ):  # fmt: skip
        assert post(f"{server.url}{place}", b"{}", "application/json")[0] in (404, 405), place
    assert alive(server, picture)


def test_sizes_are_refused_before_they_are_read(server, picture):
    """The body of a request that promises too much is never waited for; one that does not promise is cut off."""
    where = urlsplit(server.url)
    for path, limit in (("/picture", MAX_UPLOAD_BYTES), ("/gradio_api/queue/join", 1 << 20)):
        with socket.create_connection((where.hostname, where.port), timeout=20) as line:
            line.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {100 * limit}\r\n\r\n".encode())
            assert b" 413 " in line.recv(200)
    with socket.create_connection((where.hostname, where.port), timeout=20) as line:
        line.sendall(b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        try:
            for _ in range(200):
                line.sendall(piece)
            line.sendall(b"0\r\n\r\n")
            answered = line.recv(200)
        except ConnectionError:
            answered = b" 413 "  # hung up while we were still talking
        assert b" 413 " in answered
    assert alive(server, picture)


def test_nothing_on_the_page_comes_from_elsewhere(server):
    from urllib.request import urlopen

    html = urlopen(server.url, timeout=30).read().decode()
    assert "fonts.googleapis" not in html and "cdnjs" not in html and "What does it see" in html
    config = json.load(urlopen(f"{server.url}config", timeout=30))
    assert config["analytics_enabled"] is False and not config.get("run_history")
    assert not config.get("stylesheets")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--weights", "absent.safetensors"], "there is no weights file absent.safetensors"),
        (["--weights", "w.safetensors", "--host", "203.0.113.7", "--port", "7999"], "cannot listen on 203.0.113.7"),
        (["--weights", "w.safetensors", "--host", "no such host"], "cannot listen on no such host"),
        (["--weights", "w.safetensors", "--port", "70000"], "port 70000 does not exist"),
    ],
)
def test_the_command_refuses_with_a_sentence(words, sentence, tmp_path, monkeypatch, capsys, server):
    monkeypatch.chdir(tmp_path)
    weights(tmp_path / "w.safetensors")
    assert main(["app", *words]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert sentence in err and "Traceback" not in err


def test_a_taken_port(server, tmp_path, capsys):
    port = urlsplit(server.url).port
    assert main(["app", "--weights", str(weights(tmp_path / "w.safetensors")), "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in " ".join(capsys.readouterr().err.split())


def test_without_gradio_a_sentence(monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["app"]) == 2
    assert "the app needs gradio: pip install 'mspcaps[app]'" in " ".join(capsys.readouterr().err.split())
