"""A certificate authority for one test: a client's context that trusts it, and a server's that it vouches for.

Its certificates have what Python 3.13 and later ask for (`VERIFY_X509_STRICT`, RFC 5280 4.2.1): the key identifiers of
subject and issuer, and the key's usage."""

import datetime
import ssl
import tempfile
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
)  # fmt: skip


_DAY = datetime.timedelta(days=1)


def issue(
    *names: str, identified: bool = True, lasts: datetime.timedelta = _DAY
) -> tuple[bytes, bytes, bytes]:
    """The authority, a certificate for these host names and addresses, and its key; PEM. The certificate does not say
    whose key signed it where `identified` is False."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _named("test authority")
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    root = (
        _builder(authority, authority, authority_key, authority_key)
        .add_extension(constraints, critical=True)
        .add_extension(_SIGNS_CERTIFICATES, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
    unsigned = (
        _builder(_named(names[0]), authority, key, authority_key if identified else None, lasts)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(alternatives, critical=False)
    )
    certificate = unsigned.sign(authority_key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    root_text, text = (one.public_bytes(serialization.Encoding.PEM) for one in (root, certificate))
    return root_text, text, secret


def context_for(*names: str, identified: bool = True) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A client's and a server's, with what `issue` makes."""
    root, certificate, secret = issue(*names, identified=identified)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pem")
        file.write_bytes(certificate + secret)
        server.load_cert_chain(file)
    client = ssl.create_default_context(cadata=root.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on: so every Python tests it
    return client, server


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey | None,
    lasts: datetime.timedelta = _DAY,
) -> x509.CertificateBuilder:  # fmt: skip
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + lasts)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if signer is None:
        return builder
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return builder.add_extension(identifier, critical=False)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
