"""A cut in the stream of a log is told."""

from __future__ import annotations

import socket
import threading

import pytest
from websockets.sync.server import ServerConnection, serve

from fairlead.errors import ConnectionLost
from fairlead.rest import ControllerClient


def test_a_stream_that_is_cut_is_told_without_the_protocol_s_words() -> None:
    def cut(connection: ServerConnection) -> None:
        connection.send('{"offset": 0}')
        connection.socket.shutdown(socket.SHUT_RDWR)

    with serve(cut, "127.0.0.1", 0) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            port = server.socket.getsockname()[1]
            client = ControllerClient(f"http://127.0.0.1:{port}", "token")
            with pytest.raises(ConnectionLost, match=": the connection was cut; is it running"):
                list(client.followed_frames("run", lambda: None))
        finally:
            server.shutdown()
            serving.join()
