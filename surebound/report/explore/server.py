"""The explorer on this machine: a small server for one visitor, which answers only from what the run holds.

It listens on 127.0.0.1 only. The address holds a secret, so that other users of the machine and pages of other sites
cannot ask; the Host header must name this machine, so that no other site's name can be made to lead here. No part of a
request becomes a path: images and radii are looked up in the run.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable
from fractions import Fraction
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from surebound.errors import InputError, SureboundError
from surebound.report.explore.content import image_json, ranges_json, thumbnail
from surebound.report.explore.live import ask
from surebound.report.explore.page import served_page
from surebound.report.explore.proofs import certificate_json
from surebound.report.explore.subject import Subject

HERE = "127.0.0.1"
_HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
_RADIUS = re.compile(r"\d{1,9}(/[1-9]\d{0,8}|\.\d{1,12})?")
_NUMBER = re.compile(r"\d{1,9}")
MOST_BODY = 4096
MOST_THUMBNAILS = 100
#: Answers about ranges that are kept.
MOST_KEPT = 2000


class Refused(Exception):
    """A request that gets no answer, with the status that says why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Explorer(ThreadingHTTPServer):
    """Serves one run; ``url`` is where. Start it with ``serve_forever``."""

    daemon_threads = True

    def __init__(self, subject: Subject, port: int = 0) -> None:
        self.subject, self.secret = subject, secrets.token_urlsafe(12)
        self.page = served_page(subject).encode()
        self._computing = threading.Lock()  # one computation at a time: more would only wait for the same cores
        self._asking = threading.Lock()
        self._ranges: dict[tuple[int, Fraction], dict[str, Any]] = {}
        super().__init__((HERE, port), _Handler)

    @property
    def url(self) -> str:
        """The address, with its secret."""
        return f"http://{HERE}:{self.server_address[1]}/{self.secret}/"

    def ranges(self, index: int, eps: Fraction) -> dict[str, Any]:
        """Return ranges, computed once."""
        with self._computing:
            if (index, eps) not in self._ranges:
                if len(self._ranges) >= MOST_KEPT:
                    self._ranges.pop(next(iter(self._ranges)))
                self._ranges[index, eps] = ranges_json(self.subject, index, eps)
            return self._ranges[index, eps]

    def certificate(self, index: int, eps: Fraction) -> dict[str, Any]:
        """Return a certificate in words, after the checker has had a look."""
        path = self.subject.certificate(index, eps)
        if path is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no certificate of this verdict")
        with self._computing:
            return certificate_json(path)

    def ask(self, index: int, eps: Fraction, seconds: float) -> dict[str, Any]:
        """Decide an image anew, unless another question is being decided."""
        if not self._asking.acquire(blocking=False):
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, "another question is being decided; try again when it is done")
        try:
            return ask(self.subject, index, eps, seconds)
        finally:
            self._asking.release()


class _Handler(BaseHTTPRequestHandler):
    server: Explorer
    server_version = "surebound"
    sys_version = ""
    timeout = 30  # seconds that a request may take to arrive

    def do_GET(self) -> None:
        """Answer what the page asks for."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Decide a question."""
        self._answer(self._post)

    def _get(self, path: str, asked: dict[str, str]) -> None:
        subject = self.server.subject
        if path == "":
            self._send(self.server.page, "text/html; charset=utf-8")
        elif path == "image":
            self._json(image_json(subject, self._index(asked)))
        elif path == "thumbnails":
            wanted = asked.get("i", "").split(",")[:MOST_THUMBNAILS]
            self._json({i: thumbnail(subject, self._index({"i": i})) for i in wanted})
        elif path == "ranges":
            self._json(self.server.ranges(self._index(asked), _radius(asked)))
        elif path == "certificate":
            self._json(self.server.certificate(self._index(asked), _radius(asked)))
        elif path == "certificate.cert":
            found = subject.certificate(self._index(asked), _radius(asked))
            if found is None:
                raise Refused(HTTPStatus.NOT_FOUND, "there is no certificate of this verdict")
            self._send(found.read_bytes(), "application/octet-stream", found.name)
        else:
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _post(self, path: str, asked: dict[str, str]) -> None:
        if path != "verify":
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
        length = self.headers.get("Content-Length", "")
        if self.headers.get("Content-Type") != "application/json" or not _NUMBER.fullmatch(length):
            raise Refused(HTTPStatus.BAD_REQUEST, "give JSON, and its length")
        if int(length) > MOST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"give at most {MOST_BODY} bytes")
        try:
            given = json.loads(self.rfile.read(int(length)))
            seconds = float(given["seconds"])
            asked = {"i": str(given["i"]), "eps": str(given["eps"])}
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise Refused(HTTPStatus.BAD_REQUEST, "give i, eps and seconds") from None
        self._json(self.server.ask(self._index(asked), _radius(asked), seconds))

    def _index(self, asked: dict[str, str]) -> int:
        text = asked.get("i", "")
        if not _NUMBER.fullmatch(text) or int(text) not in self.server.subject.records:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no image of this number")
        return int(text)

    def _answer(self, respond: Callable[[str, dict[str, str]], None]) -> None:
        try:
            if not _HOSTS.fullmatch(self.headers.get("Host", "")):
                raise Refused(HTTPStatus.FORBIDDEN, "ask for 127.0.0.1 or localhost")
            if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
                raise Refused(HTTPStatus.FORBIDDEN, "pages of other sites get no answer")
            url = _address(self.path)
            _, secret, path = [*url.path.split("/", 2), "", ""][:3]
            if not secrets.compare_digest(secret.encode(), self.server.secret.encode()):
                raise Refused(HTTPStatus.NOT_FOUND, "the address changes with every start: take it from the terminal")
            respond(path, {key: values[-1] for key, values in parse_qs(url.query).items()})
        except Refused as error:
            self._send(json.dumps({"error": error.why}).encode(), "application/json", status=error.status)
        except SureboundError as error:
            self._send(json.dumps({"error": str(error)}).encode(), "application/json", status=HTTPStatus.BAD_REQUEST)
        except ConnectionError:  # the visitor went on to another image
            self.close_connection = True

    def _json(self, content: Any) -> None:
        self._send(json.dumps(content, separators=(",", ":")).encode(), "application/json")

    def _send(self, body: bytes, kind: str, name: str = "", status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if name:
            self.send_header("Content-Disposition", f'attachment; filename="{name}"')
        for header, value in (
            ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"), ("Cross-Origin-Resource-Policy", "same-origin"),
        ):  # fmt: skip
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal is the user's."""


def _address(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError:  # brackets that are no address
        raise Refused(HTTPStatus.BAD_REQUEST, "this is no address") from None


def _radius(asked: dict[str, str]) -> Fraction:
    text = asked.get("eps", "")
    if not _RADIUS.fullmatch(text):
        raise Refused(HTTPStatus.BAD_REQUEST, "give a radius like 1/10, 8/255 or 0.1")
    return Fraction(text)


def start(subject: Subject, port: int = 0) -> Explorer:
    """Make the server; a port that cannot be had is an error that says so."""
    try:
        return Explorer(subject, port)
    except OSError as error:
        raise InputError(
            f"port {port} of {HERE} cannot be used ({error.strerror}); --port 0 takes a free one"
        ) from error
