"""The credentials that are known by their look, whatever stands around them. Pure.

Many prefixes are those of gitleaks (https://github.com/gitleaks/gitleaks, config/gitleaks.toml, MIT License).
Others are added by hand. Its patterns are not used: they are for an engine that never backtracks. Here one class of
characters with a bound follows each prefix, so the work is linear.
"""

import re
from collections.abc import Iterator
from typing import Final

from sluicegate.audit.values import is_no_value

Span = tuple[int, int]

# What begins like this, goes on for 16 characters or more and has a digit is a token.
_PREFIXES: Final = (
    "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- glptt- glrt- glrtr- gldt- glcbt- glsoat- glft- glimt- glagent- gloas- "
    "glffct- GR1348941 sk-ant- sk-proj- sk-svcacct- sk-admin- sk-or- sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ "
    "rk_prod_ pk_live_ whsec_ xoxa- xoxb- xoxc- xoxd- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xapp- hf_ api_org_ npm_ "
    "lin_api_ "
    "lin_oauth_ ntn_ secret_ dop_v1_ doo_v1_ dor_v1_ shpat_ shpss_ shpca_ shppa_ sq0csp- sq0atp- sq0idp- dckr_pat_ "
    "dckr_oat_ "
    "pul- pul_ figd_ figu_ glsa_ glc_ NRAK- NRII- NRJS- NRRA- tskey- hvs. hvb. hvr. GOCSPX- ya29. rubygems_ rdme_ "
    "sntrys_ "
    "sntryu_ pscale_ PMAK- pnu_ pplx- gsk_ r8_ xai- tvly- fio-u- fo1_ fm1a_ fm1r_ fm2_ FlyV1 duffel_ dt0c01. dt0s01. "
    "dp.pt. dp.st. dp.ct. EZAK EZTK CLOJARS_ ops_eyJ ATATT3 ATCTT3 ATBB BBDC- xkeysib- xsmtpsib- shippo_ sgp_ squ_ "
    "sqp_ "
    "sqa_ tfp_ AKCp cmVmd LTAI AQVN nfp_ sbp_ sb_secret_ CFPAT- phx_ rnd_ lsv2_ pcsk_ jina_ re_ slc_ pypi- SG. SCW "
    "EAAC EAAM "
    "EAAG HRKU- ABSK dnkey- FLWSECK sm_aat_ sm_pat_ sm_sat_ scauth_ authress_ tk-us- tskey-auth- vercel_ vcp_"
).split()
# Those whose prefix is too short, or that have a form of their own.
_FORMS: Final = (
    r"(?i:bearer|basic|token|apikey)[ \t]{1,4}(?=[a-z\-]{0,64}[A-Z0-9._~+/])[A-Za-z0-9._~+/\-]{16,4000}={0,2}",
    r"eyJ[A-Za-z0-9_\-]{8,1000}+(?:\.[A-Za-z0-9_\-]{0,2000}+){0,2}",
    r"sk-[A-Za-z0-9]{20,255}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
    r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}(?![A-Za-z0-9])",
    r"AIza[A-Za-z0-9_\-]{35}",
    r"dapi[0-9a-f]{32}(?:-\d)?",
    r"key-[0-9a-f]{32}(?![0-9a-f])",
    r"SK[0-9a-f]{32}(?![0-9a-f])",
    r"p8e-[A-Za-z0-9]{32}",
    r"API-[A-Z0-9]{26}(?![A-Z0-9])",
    r"A3-[A-Z0-9]{6}-[A-Z0-9]{6,11}-[A-Z0-9\-]{11,17}",
    r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}",
    r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=\-]{40,80}",
    r"[MNO][A-Za-z0-9_\-]{23,28}\.[A-Za-z0-9_\-]{6,8}\.[A-Za-z0-9_\-]{27,42}",
    r"(?:bot)?\d{8,10}:AA[A-Za-z0-9_\-]{32,36}",
    r"AAAA[A-Za-z0-9_\-]{7}:APA91[A-Za-z0-9_\-]{100,200}",
    r"[0-9a-f]{32}-us\d{1,2}(?![0-9a-z])",
    r"sl\.[A-Za-z0-9_\-]{60,1500}",
    r"sha256~[A-Za-z0-9_\-]{43}",
    r"[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.\-]{31,34}",
    r"https://(?:hooks\.slack\.com/(?:services|workflows|triggers)|(?:\w{1,10}\.)?discord(?:app)?\.com/api/webhooks|"
    r"[\w\-]{1,60}\.webhook\.office\.com/webhookb2|outlook\.office(?:365)?\.com/webhook|hooks\.zapier\.com/hooks/catch|"
    r"hook\.\w{1,9}\.make\.com|maker\.ifttt\.com/trigger)/[A-Za-z0-9/_@\-]{16,300}",
)
_TOKEN: Final = (
    rf"(?:{'|'.join(map(re.escape, _PREFIXES))})(?=[A-Za-z_\-.+/=]{{0,80}}\d|[A-Za-z]{{20}})"
    r"[A-Za-z0-9_.+/=~\-]{15,1500}[A-Za-z0-9_=\-]"
)
# Only what a key consists of: an approver has to see a command that stands between the two lines.
_BASE64: Final = "[A-Za-z0-9+/=]"
_LAST_LINES: Final = rf"(?={_BASE64}{{0,11}}(?:\s|\\{{1,8}}[nr]){{0,8}}(?:=[A-Za-z0-9+/]{{4}}\s{{0,4}})?-----END)"
_KEY_BODY: Final = (
    rf"(?:\s|\\{{1,8}}[nr]|{_BASE64}{{12}}|(?<={_BASE64}{{12}}){_BASE64}|{_BASE64}{_LAST_LINES}"
    r"|(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset):[\w,./+ \-]{0,100}){0,8000}+"
)
_LOOKS: Final = re.compile(
    # private keys
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    + _KEY_BODY
    + r"(?:-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----)?|(?<=Private-Lines: "
    r")\d{1,3}\s{1,4}(?:[A-Za-z0-9+/=]{1,80}+\s{0,4}+){1,100}+|"
    # user and password in a URL, parameters of a query
    r"(?<=://)[^\s/:\"'<>]{0,256}+:[^\s/]{1,256}(?=@)|"
    r"(?<=[?&;#])(?i:access_token|refresh_token|id_token|token|api_?key|secret|client_secret|password|passwd|pwd"
    r"|auth|sig|"
    r"signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|subscription-key|"
    r"(?:key|code|session)(?==[^\s&]{0,64}\d[^\s&]{5}))=[^\s&;#\"'<>`]{1,2048}|"
    # hashes of passwords
    r"\$(?:1|2[abxy]?|5|6|7|y|gy|apr1|argon2\w{1,2}|scrypt|pbkdf2[\w\-]{0,16})\$[./A-Za-z0-9$=,+\-]{20,300}|"
    r"\{S?(?:SHA|MD5|CRYPT)\d{0,3}\}[A-Za-z0-9+/=$.]{16,200}|\bpbkdf2_sha\d{1,3}\$\d{1,9}\$[A-Za-z0-9+/=$]{16,200}|"
    rf"(?<![A-Za-z0-9])(?:{'|'.join((_TOKEN, *_FORMS))})"
)
# One look decides for most texts: each pattern needs a run like this, a URL, a parameter or a private key.
_RUN: Final = re.compile(r"[A-Za-z0-9_+/=.\-]{16}")
_FAKE: Final = re.compile(r"([xX*.])\1{5}")


def may_look_secret(text: str) -> bool:
    """Whether `by_look` may find something; a no is sure."""
    return _RUN.search(text) is not None or "://" in text or "=" in text or "-----BEGIN" in text


def by_look(text: str) -> Iterator[Span]:
    """Where credentials stand, in order, none overlapping."""
    if may_look_secret(text):
        for match in _LOOKS.finditer(text):
            found = match[0]
            before = text[max(0, match.start() - 3) : match.start()]
            sign = ":" if before == "://" else "=" if before[-1:] in tuple("?&;#") else ""
            if _FAKE.search(found) is None and not (sign and is_no_value(found.partition(sign)[2])):
                yield match.span()
