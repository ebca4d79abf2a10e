"""The HTTP server of `tutti status --serve`."""
from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Callable

from torch_tutti._arguments import split_address

# A connection may be silent for so many seconds.
IDLE_S = 5


def serve(address: str, metrics: Callable[[], str]) -> int:
    """Answers requests for /metrics until interrupted. Returns 0.

    address: HOST:PORT to listen at. metrics: returns the text. Raises ValueError for an address that is none."""
    place = split_address(address)
    if not place:
        raise ValueError(f"status: --serve {address} is no HOST:PORT, such as 127.0.0.1:9400")

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_S

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            try:
                body = metrics().encode()
            except ValueError as error:
                self.send_error(503, str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(place, Handler) as server:
        print(f"metrics at http://{server.server_address[0]}:{server.server_address[1]}/metrics", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
    return 0
