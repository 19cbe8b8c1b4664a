#!/usr/bin/env python3
"""A proxy to an object store on this machine that fails now and then.

    storage_proxy.py PORT STORE_PORT LOG SEED

Of the requests that pass, in turn, some are answered by 503 SlowDown, some get
no answer though they are done, some are reset, and of some the answer is cut.
A line of LOG for each says which; SEED says where the turn begins.
"""
import http.client
import http.server
import itertools
import socket
import struct
import sys
import threading

FAULTS = {5: "slow", 11: "lost", 17: "reset", 23: "cut"}
count = itertools.count(1 + int(sys.argv[4]))
store_port = int(sys.argv[2])
log = open(sys.argv[3], "a", buffering=1)
lock = threading.Lock()


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                   struct.pack("ii", 1, 0))
        self.close_connection = True

    def handle_one(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with lock:
            number = next(count)
        fault = next((f for n, f in FAULTS.items() if number % n == 0), "")
        log.write(f"{fault or 'passed'} {self.command} {self.path}\n")
        if fault == "reset":
            return self.reset()
        if fault == "slow":
            answer = b"<Error><Code>SlowDown</Code></Error>"
            self.send_response(503)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)
            return None
        store = http.client.HTTPConnection("127.0.0.1", store_port)
        store.request(self.command, self.path, body=body,
                      headers=dict(self.headers))
        response = store.getresponse()
        answer = response.read()
        if fault == "lost":
            return self.reset()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date",
                                    "server"):
                if name.lower() != "content-length" or self.command == "HEAD":
                    self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if fault == "cut":
            self.wfile.write(answer[:len(answer) // 2])
            self.close_connection = True
        else:
            self.wfile.write(answer)
        return None

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])),
                                Proxy).serve_forever()
