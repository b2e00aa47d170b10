"""A client of several controllers: it goes on to the next one, and sends nothing twice that may not
be."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import settings
from fairlead.connections import requests
from fairlead.connections.addresses import PAUSES_SECONDS, Addresses, plainly_parsed
from fairlead.connections.order_keys import ORDER_KEY
from fairlead.errors import ApiError, ConnectionLost, NotFound, NotLoggedIn, SettingsError
from fairlead.rest import ControllerClient
from fairlead.wire.errors import LEADS_NO_MORE, STORE_UNAVAILABLE
from tests.support.ssh_daemon import free_port
from tests.support.waiting import LONG, wait_until

ODD_PATHS = ("http://c2/a b", "http://c2/\u00e4", "http://c2/x?a=b", "http://c2/#top")
BIG = b"x" * (32 << 20)
"""More than the kernel takes for a reader that does not read."""
CUT = 0
"""Instead of an HTTP status: the connection is cut when the request is there."""


class _Played:
    """A controller that gives the same answer to each request, and counts them."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b'{"ok": true}'
        self.requests: list[tuple[str, str, bytes]] = []
        self.order_keys: list[str | None] = []
        self.waits: threading.Event | None = None
        """Until then `/v1/x` gets no answer."""
        played = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                played.requests.append((self.command, self.path, body))
                played.order_keys.append(self.headers.get(ORDER_KEY))
                if played.waits is not None and self.path == "/v1/x":
                    assert played.waits.wait(LONG)
                if played.status == CUT:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                self.send_response(played.status)
                self.send_header("Content-Length", str(len(played.body)))
                self.end_headers()
                self.wfile.write(played.body)

            do_GET = do_POST = do_PUT = do_DELETE = _answer

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    def refuses(self, status: int, code: str) -> None:
        self.status = status
        self.body = json.dumps({"error": {"code": code, "message": f"it is {code}"}}).encode()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def play() -> Iterator[Callable[[], _Played]]:
    with contextlib.ExitStack() as closing:

        def one() -> _Played:
            played = _Played()
            closing.callback(played.close)
            return played

        yield one


class Told(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


def of(*urls: str, told: Told | None = None) -> ControllerClient:
    return ControllerClient(",".join(urls), "token", tell=Told() if told is None else told)


def nobody() -> str:
    return f"http://127.0.0.1:{free_port()}"


def test_the_next_address_answers_when_one_cannot_be_reached(play: Callable[[], _Played]) -> None:
    away, second, told = nobody(), play(), Told()
    client = of(away, second.url, told=told)

    assert client.post("/v1/x", {}) == second.body
    assert told == [f"{away} is passed over: Connection refused; {second.url} answers"]
    assert client.url == second.url
    assert client.another().get("/v1/x") == second.body
    assert len(told) == 1, "it begins with the one that answered"


def test_a_request_that_was_sent_is_not_sent_to_another_unless_it_is_repeatable(
    play: Callable[[], _Played],
) -> None:
    first, second = play(), play()
    first.status = CUT
    client = of(first.url, second.url)

    with pytest.raises(ConnectionLost, match=r"the connection was cut\): look whether") as lost:
        client.post("/v1/runs/r/stop", {})
    assert (lost.value.unsent, second.requests) == (False, [])
    assert client.get("/v1/x") == second.body, "the next request begins with the other one"

    client = of(first.url, second.url)
    assert client.get("/v1/x") == second.body
    client = of(first.url, second.url)
    assert client.submit({"client_key": "k"}) == (second.body, 200)
    for action in ("stop", "complete", "suspend", "resume", "scale"):
        client = of(first.url, second.url)
        assert client.post(f"/v1/runs/0123456789abcdef/{action}", {}) == second.body
        assert first.order_keys[-1] == second.order_keys[-1] is not None
    assert len(set(second.order_keys[-5:])) == 5, "a key for each order"
    client = of(first.url, second.url)
    with pytest.raises(ConnectionLost):
        client.submit({"configuration": {}})
    client = of(first.url)
    with pytest.raises(ConnectionLost, match=r"gave no answer \(the connection was cut\)"):
        client.post("/v1/x", {})


@contextlib.contextmanager
def paused() -> Iterator[str]:
    """One whose process is paused: its kernel takes connections and what they say."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_controller_that_takes_a_request_and_says_nothing_is_passed_over(
    play: Callable[[], _Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "SILENT_SECONDS", 0.05)
    second, told = play(), Told()
    with paused() as silent:
        client = of(silent, second.url, told=told)
        assert client.get("/v1/x") == second.body
    assert told == [f"{silent} is passed over: it does not answer; {second.url} answers"]


def test_a_controller_whose_process_answers_nothing_is_passed_over_soon(
    play: Callable[[], _Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(requests, "AWAKE_SECONDS", 0.05)
    monkeypatch.setattr(requests, "SILENT_SECONDS", LONG)
    second, told = play(), Told()
    with paused() as silent:
        client = of(silent, second.url, told=told)
        assert client.submit({"client_key": "k"}) == (second.body, 200)
    assert told == [f"{silent} is passed over: it does not answer; {second.url} answers"]


def test_a_controller_that_is_busy_with_a_request_is_waited_for(
    play: Callable[[], _Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(requests, "AWAKE_SECONDS", LONG)
    monkeypatch.setattr(requests, "SILENT_SECONDS", LONG)
    first, second = play(), play()
    first.waits = answers = threading.Event()
    client = of(first.url, second.url)

    def let_go() -> None:
        # The client has looked for the third time.
        wait_until(lambda: len(first.requests) >= 4, what="looks")
        answers.set()

    watching = threading.Thread(target=let_go)
    watching.start()
    assert client.get("/v1/x") == first.body
    watching.join()
    assert {path for _, path, _ in first.requests[1:]} == {"/v1/controllers/link"}
    assert second.requests == []


def test_a_watch_at_a_paused_controller_ends_sooner_where_another_one_can_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "SILENCE_OF_SEVERAL_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def begin() -> None:
            connection, _ = listening.accept()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
            begun.append(connection)

        begun: list[socket.socket] = []
        beginning = threading.Thread(target=begin)
        beginning.start()
        with pytest.raises(ConnectionLost, match="does not answer"):
            next(of(url, nobody())._lines("/v1/x"))
        beginning.join()
        begun[0].close()


def test_a_watch_that_ends_leaves_its_own_address_and_no_other_one(
    play: Callable[[], _Played],
) -> None:
    """Another thread's request may have gone on to the next one before."""
    second = play()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        client = of(url, second.url)
        lines = client._lines("/v1/watch")
        begun: list[socket.socket] = []

        def begin() -> None:
            connection, _ = listening.accept()
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"run": null}\n')
            begun.append(connection)

        beginning = threading.Thread(target=begin)
        beginning.start()
        assert next(lines) == b'{"run": null}\n'
        beginning.join()
    assert client.get("/v1/x") == second.body
    begun[0].close()
    with pytest.raises(ConnectionLost, match=re.escape(url)):
        next(lines)
    assert client.url == second.url


def test_a_controller_that_begins_no_tls_is_passed_over_by_each_request(
    play: Callable[[], _Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "HANDSHAKE_SECONDS", 0.05)
    second = play()
    with paused() as silent:
        client = of(silent.replace("http:", "https:"), second.url)
        assert client.post("/v1/x", {}) == second.body


def test_the_last_address_and_a_request_that_may_not_be_repeated_have_their_whole_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "SILENT_SECONDS", 0.0)  # any wait would be over at once
    monkeypatch.setattr(requests, "ANSWER_SECONDS", 0.2)
    with paused() as silent:
        for client, method in ((of(silent, nobody()), "POST"), (of(nobody(), silent), "GET")):
            began = time.monotonic()
            with pytest.raises(ConnectionLost, match="does not answer"):
                client._request(method, "/v1/x")
            assert time.monotonic() - began > 0.2


def test_an_upload_begins_again_at_the_next_address(play: Callable[[], _Played]) -> None:
    first, second = play(), play()
    first.status = CUT
    with TemporaryDirectory() as folder:
        file = Path(folder, "code")
        file.write_bytes(b"x" * 100_000)
        of(first.url, second.url).upload("d", file, lambda _: None)
    assert second.requests == [("PUT", "/v1/blobs/d", b"x" * 100_000)]


@contextlib.contextmanager
def reading_slowly(looks: int) -> Iterator[tuple[str, list[int]]]:
    """One that reads the body of an upload only after this number of looks whether it answers
    anything. It gives the number of bytes of each upload."""
    uploads: list[int] = []
    looked = threading.Semaphore(0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            looked.release()
            self._end()

        def do_PUT(self) -> None:
            for _ in range(looks):
                assert looked.acquire(timeout=LONG)
            uploads.append(len(self.rfile.read(int(self.headers["Content-Length"]))))
            self._end()

        def _end(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", uploads
    finally:
        for _ in range(looks):
            looked.release()
        server.shutdown()
        serving.join()
        server.server_close()


def test_an_upload_waits_for_a_controller_that_reads_nothing_for_a_while(
    play: Callable[[], _Played], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk may be slow. The kernel would end a connection after GONE_SECONDS of that."""
    monkeypatch.setattr(requests, "GONE_SECONDS", 1)
    monkeypatch.setattr(requests, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(requests, "AWAKE_SECONDS", LONG)
    second = play()
    (file := tmp_path / "code").write_bytes(BIG)
    with reading_slowly(20) as (url, uploads):
        of(url, second.url).upload("d", file, lambda _: None)
    assert (uploads, second.requests) == ([len(BIG)], [])


@pytest.mark.parametrize("size", [1, 32 << 20], ids=["waits for its answer", "is being sent"])
def test_an_upload_leaves_a_controller_whose_process_answers_nothing(
    play: Callable[[], _Played], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(requests, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(requests, "AWAKE_SECONDS", 0.05)
    second, told = play(), Told()
    (file := tmp_path / "code").write_bytes(b"x" * size)
    with paused() as silent:
        of(silent, second.url, told=told).upload("d", file, lambda _: None)
    assert [len(body) for _, _, body in second.requests] == [size]
    assert told == [f"{silent} is passed over: it does not answer; {second.url} answers"]


def test_an_upload_gives_the_last_address_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(requests, "AWAKE_SECONDS", 0.01)
    monkeypatch.setattr(requests, "UNHEARD_SECONDS", 1)
    (file := tmp_path / "code").write_bytes(b"x")
    with paused() as silent:
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="does not answer"):
            of(silent).upload("d", file, lambda _: None)
        assert time.monotonic() - began > 1


def test_an_address_that_is_no_controller_is_told_and_passed_over(
    play: Callable[[], _Played],
) -> None:
    wrong, right, told = play(), play(), Told()
    wrong.status, wrong.body = 404, b"<html>"
    assert of(wrong.url, right.url, told=told).get("/v1/x") == right.body
    (sentence,) = told
    assert "it answers with HTTP 404, but not like a Fairlead controller" in sentence


def test_a_redirection_is_no_answer_of_a_controller(play: Callable[[], _Played]) -> None:
    """A portal or a proxy redirects: nothing was done, and nothing was uploaded."""
    portal = play()
    portal.status, portal.body = 302, b"<html>"
    client = of(portal.url)
    with pytest.raises(ConnectionLost, match="answered with HTTP 302, but not like a Fairlead"):
        client.post("/v1/x", {})
    with TemporaryDirectory() as folder:
        file = Path(folder, "code")
        file.write_bytes(b"x")
        with pytest.raises(ConnectionLost, match="HTTP 302"):
            client.upload("d", file, lambda _: None)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", ["m\u00fcller..x", "a..b", "\u00e4" * 80, "no such host"])
def test_a_name_that_no_host_can_have_is_told(scheme: str, host: str) -> None:
    with pytest.raises(ConnectionLost, match="its name cannot be looked up") as lost:
        of(f"{scheme}://{host}:8700").post("/v1/x", {})
    assert lost.value.unsent


def test_a_controller_that_does_not_know_the_token_is_told_and_passed_over(
    play: Callable[[], _Played],
) -> None:
    other, right, told = play(), play(), Told()
    other.refuses(401, "unauthorized")
    assert of(other.url, right.url, told=told).post("/v1/x", {}) == right.body
    assert told == [f"{other.url} is passed over: it is unauthorized; {right.url} answers"]
    right.refuses(401, "unauthorized")
    with pytest.raises(NotLoggedIn):
        of(other.url, right.url).post("/v1/x", {})


def test_a_refusal_is_an_answer(play: Callable[[], _Played]) -> None:
    first, second = play(), play()
    first.refuses(404, "not_found")
    with pytest.raises(NotFound):
        of(first.url, second.url).get("/v1/runs/x")
    assert second.requests == []


def test_all_that_cannot_be_reached_are_named(play: Callable[[], _Played]) -> None:
    away, wrong = nobody(), play()
    wrong.status, wrong.body = 502, b"bad gateway"
    with pytest.raises(ConnectionLost) as lost:
        of(away, "http://no.such.host.invalid", wrong.url).get("/v1/x")
    assert f"{away}: Connection refused; http://no.such.host.invalid: its name" in str(lost.value)
    assert f"{wrong.url}: it answers with HTTP 502" in str(lost.value)
    assert lost.value.refused
    assert not lost.value.unsent


@pytest.mark.parametrize("wrong", ["", "c2", "ftp://c2", "http://c2:99999", *ODD_PATHS])
def test_a_wrong_one_of_the_list_is_named(wrong: str) -> None:
    with pytest.raises(SettingsError, match="FAIRLEAD_URL") as refused:
        Addresses(f"http://c1,{wrong}")
    assert repr(wrong) in str(refused.value)
    assert "is not a URL like http://127.0.0.1:8700" in str(refused.value)
    assert "write a comma between two URLs" in str(refused.value)


def test_spaces_and_repetitions_mean_nothing() -> None:
    addresses = Addresses(" http://c1:8700/ , https://c2/base,http://c1:8700")
    assert [one.url for one in addresses.all] == ["http://c1:8700", "https://c2/base"]
    assert [(one.host, one.port) for one in addresses.all] == [("c1", 8700), ("c2", 443)]


def test_a_token_goes_to_each_address_that_it_was_given_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAIRLEAD_URL", "http://c1,http://c2")
    monkeypatch.setenv("FAIRLEAD_TOKEN", "fl_x")
    assert settings.token_for("http://c2/") == "fl_x"
    assert settings.token_for("http://c2, http://c1") == "fl_x"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    assert settings.token_for("http://c2,http://c3") is None


@pytest.mark.parametrize("method", ["get", "post"])
def test_one_that_leads_no_more_did_nothing_so_the_next_one_is_asked(
    play: Callable[[], _Played], method: str
) -> None:
    former, leader, told = play(), play(), Told()
    former.refuses(503, LEADS_NO_MORE)
    client = of(former.url, leader.url, told=told)
    client.get("/v1/x") if method == "get" else client.post("/v1/x", {})
    assert len(leader.requests) == 1
    assert "is passed over: " in told[0]


def test_when_nobody_leads_the_refusal_says_so(play: Callable[[], _Played]) -> None:
    former = play()
    former.refuses(503, LEADS_NO_MORE)
    slept: list[float] = []
    addresses = Addresses(f"{former.url},{nobody()}", Told(), sleep=slept.append)
    with pytest.raises(ApiError, match="it is leads_no_more"):
        ControllerClient(addresses, "token").get("/v1/x")
    assert slept == list(PAUSES_SECONDS)


@pytest.mark.parametrize("are_several", [False, True])
def test_a_change_that_nobody_could_do_is_sent_again_after_a_moment(
    play: Callable[[], _Played], *, are_several: bool
) -> None:
    former, told = play(), Told()
    former.refuses(503, LEADS_NO_MORE)

    def leads_again(_: float) -> None:
        former.status = 200

    urls = f"{former.url},{nobody()}" if are_several else former.url
    client = ControllerClient(Addresses(urls, told, sleep=leads_again), "token")
    client.post("/v1/x", {})
    assert len(former.requests) == 2
    assert not any(former.url + " is passed over" in one for one in told)


@pytest.mark.parametrize("are_several", [False, True])
def test_a_read_is_sent_again_when_the_database_did_not_answer(
    play: Callable[[], _Played], *, are_several: bool
) -> None:
    busy, told = play(), Told()
    busy.refuses(503, STORE_UNAVAILABLE)
    slept: list[float] = []

    def answers_again(seconds: float) -> None:
        slept.append(seconds)
        busy.status = 200 if slept == list(PAUSES_SECONDS) else 503

    urls = f"{busy.url},{nobody()}" if are_several else busy.url
    ControllerClient(Addresses(urls, told, sleep=answers_again), "token").get("/v1/x")
    assert (len(busy.requests), slept) == (3, list(PAUSES_SECONDS))


def test_a_database_that_stays_away_is_told_as_it_is(play: Callable[[], _Played]) -> None:
    busy = play()
    busy.refuses(503, STORE_UNAVAILABLE)
    slept: list[float] = []
    addresses = Addresses(busy.url, Told(), sleep=slept.append)
    with pytest.raises(ApiError, match="it is store_unavailable"):
        ControllerClient(addresses, "token").get("/v1/x")
    assert slept == list(PAUSES_SECONDS)


def test_a_change_of_which_nobody_knows_whether_it_was_stored_is_sent_once(
    play: Callable[[], _Played],
) -> None:
    busy = play()
    busy.refuses(503, STORE_UNAVAILABLE)
    slept: list[float] = []
    client = ControllerClient(Addresses(busy.url, Told(), sleep=slept.append), "token")
    with pytest.raises(ApiError, match="it is store_unavailable"):
        client.post("/v1/x", {})
    assert (len(busy.requests), slept) == (1, [])


def test_a_change_whose_connection_broke_is_not_sent_again(play: Callable[[], _Played]) -> None:
    broken, former = play(), play()
    former.refuses(503, LEADS_NO_MORE)

    def breaks(_: float) -> None:
        former.status = CUT

    addresses = Addresses(f"{former.url},{broken.url}", Told(), sleep=breaks)
    broken.refuses(503, LEADS_NO_MORE)
    with pytest.raises(ConnectionLost):
        ControllerClient(addresses, "token").post("/v1/x", {})
    assert (len(former.requests), len(broken.requests)) == (2, 1)


@given(st.from_regex(r"https?://[a-zA-Z0-9.:@/?#\[\]-]{1,12}(:[0-9]{0,6})?", fullmatch=True))
def test_a_plain_url_means_what_urlsplit_says(url: str) -> None:
    found = plainly_parsed(url)
    if found is not None:
        parts = urlsplit(url)
        usual = 443 if parts.scheme == "https" else 80
        assert (found.host, found.port, found.base) == (parts.hostname, parts.port or usual, "")
        assert (found.url, found.is_secure) == (url, parts.scheme == "https")


def test_usual_urls_are_plain() -> None:
    usual = ("http://127.0.0.1:8700", "https://fairlead.example.org", "http://C-1:65535")
    assert all(map(plainly_parsed, usual))
