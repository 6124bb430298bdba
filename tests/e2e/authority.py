"""Certificates for the tests of TLS, made with openssl."""

import os
import subprocess


class Authority:
    """A folder with a CA and what it signs: NAME.pem and NAME.key."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder)
        self.openssl("req", "-x509", *self.key("ca"), "-subj", "/CN=test authority", "-days", "2", "-out",
                     self.path("ca.pem"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def key(self, name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.path(name + ".key")]

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], check=True, stdin=subprocess.DEVNULL, capture_output=True)

    def sign(self, name, names, days=2):
        """A certificate for `names`, as in subjectAltName: "DNS:trainer,IP:127.0.0.1"."""
        request, extensions = self.path(name + ".csr"), self.path(name + ".ext")
        with open(extensions, "w") as f:
            f.write(f"subjectAltName = {names}\n")
        self.openssl("req", "-new", *self.key(name), "-subj", f"/CN={name}", "-out", request)
        self.openssl("x509", "-req", "-in", request, "-CA", self.path("ca.pem"), "-CAkey", self.path("ca.key"),
                     "-CAcreateserial", "-days", str(days), "-extfile", extensions, "-out", self.path(name + ".pem"))

    def client(self, name, ca=None):
        """Options of ballast-rank and ballastctl."""
        return {"tls_certificate": self.path(name + ".pem"), "tls_key": self.path(name + ".key"),
                "tls_ca": (ca or self).path("ca.pem")}
