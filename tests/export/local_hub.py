"""As much of the Hugging Face hub as huggingface_hub needs to put files into a repository and to fetch them again."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}  # repository -> path -> content
        self.private: dict[str, bool] = {}
        self.fetched: list[str] = []  # paths whose content was asked for

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Nothing on stderr."""

    def answer(self, content: object, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self) -> None:
        self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer hf_of_the_test":
            return self.answer({"error": "Invalid username or password."}, 401)
        parts = urlparse(self.path).path.strip("/").split("/")
        if parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.server.files.setdefault(name, {})
            self.server.private[name] = asked.get("private") or asked.get("visibility") == "private"
            return self.answer({"url": f"{self.server.address}/{name}"})
        if parts == ["api", "validate-yaml"]:  # the front matter of a model card
            return self.answer({"errors": [], "warnings": []})
        name, action = "/".join(parts[2:4]), parts[4]
        if action == "preupload":
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        if action == "commit":
            for line in map(json.loads, body.decode().splitlines()):
                if line["key"] == "file":
                    self.server.files[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            address = f"{self.server.address}/{name}/commit/{COMMIT}"
            return self.answer({"commitUrl": address, "commitOid": COMMIT, "success": True})
        return self.answer({"error": self.path}, 400)

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlparse(self.path).path.strip("/").split("/")]
        if parts[0] == "api":  # api/models/OWNER/NAME/...
            name = "/".join(parts[2:4])
            if name not in self.server.files:
                return self.refuse()
            files = self.server.files[name]
            if parts[4:5] == ["tree"]:
                return self.answer([
                    {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for path, content in files.items()
                ])  # fmt: skip
            return self.answer({"id": name, "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]})
        name, path = "/".join(parts[:2]), "/".join(parts[4:])  # OWNER/NAME/resolve/COMMIT/PATH
        if path not in self.server.files.get(name, {}):
            return self.refuse()
        content = self.server.files[name][path]
        if self.command == "GET":
            self.server.fetched.append(path)
        return self.answer(content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=COMMIT)

    do_HEAD = do_GET


@contextmanager
def local_hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
