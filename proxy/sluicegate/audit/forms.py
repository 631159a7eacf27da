"""Secrets that have a place instead of a name: in commands, files, calls and tables. Pure.

Most of this file is data: a pattern ends where a secret begins. Each has a bound on what it looks at.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

from sluicegate.audit import values

Fit = Callable[[str], bool]

CJK: Final = re.compile("(?:パスワード|暗証番号|合言葉|密码|密碼|口令|密钥|비밀번호|암호)")

# ---------------------------------------------------------------- options of programs

# What the options of a program give: `-p` a password; `-p+` one glued to the option; `-p?` one if it is a mixed word;
# `-u:` a user and a password.
_TABLE: Final = {
    r"mysql\w{0,8}|mariadb[\w\-]{0,8}": "-p+ -p?",
    "sshpass|az|oc|cf|twine|influx|cqlsh|cypher-shell|rdesktop|psexec|rabbitmqadmin|nxc|crackmapexec|netexec"
    "|evil-winrm|ncftpput": "-p -p+",
    r"(?:docker|podman|nerdctl|buildah|helm|crane|oras)[ ](?:registry[ ]|auth[ ])?login": "-p -p+",
    r"mongo\w{0,8}|usermod|useradd|arangosh|clickhouse-client": "-p",
    "redis-cli|valkey-cli|keydb-cli": "-a",
    r"ldap\w{3,8}|kadmin|security": "-w",
    "zip|unzip|zipcloak|mosquitto_pub|mosquitto_sub|ipmitool|sqlcmd|bcp|osql|isql|tsql": "-P -P+",
    "7z|7za|7zz|rar|unrar": "-p+",
    "plink|pscp|psftp": "-pw",
    r"snmp(?:walk|get|set|bulkwalk|bulkget|getnext|status|table)": "-c -A -X",
    "openssl": "-k -K",
    "doctl|glab|vercel|flyctl|fly": "-t",
    "smbclient|rpcclient|winexe|smbmap|wmic": "-U%",
    "curl|wget|etcdctl|http|https|xh|lftp|skopeo": "-u: -U: -a: -u,",
}  # fmt: skip
_ROWS: Final = tuple(_TABLE.items())
_PROGRAMS: Final = re.compile(rf"(?<![\w\-.])(?:{'|'.join(f'({programs})' for programs in _TABLE)})(?:\.exe)?(?=[ \t])")
_OPTION: Final = re.compile(
    r"(?<![\w\-/])(?:(-[pPawkKctAX]|-pw)(?:[ \t]{1,4}(?=[^\s\-])|=)|(-[pP])(?=[\w'\"])|"
    r"(-[uUa])[ =]?[\"']?(?:[\w.\-]{1,64}[/\\]{1,2})?[^\s:%,\"'/]{1,64}([:%,])(?![/\s])|"
    r"(?:--user|--proxy-user|--[\w\-]{0,20}creds|/user|-user|--auth)[ :=]{1,4}[\"']?[^\s:\"'/]{1,64}:(?!/))"
)
_COMMAND: Final = 256  # characters of a command before its option
_STRONG: Final = re.compile(r"[^a-z0-9]")
_PORTS: Final = re.compile(r"[\d:.,]+(?:/\w{3})?$|[/.~\-]")


def _options(text: str) -> Iterator[tuple[int, Fit | None]]:
    programs = [(found.start(), found.end(), found.lastindex or 1) for found in _PROGRAMS.finditer(text)]
    starts = [start for start, _, _ in programs]
    for option in _OPTION.finditer(text):
        separate, glued, user, sign = option.groups()
        nearest = bisect_left(starts, option.start()) - 1
        known: list[str] = []
        if nearest >= 0 and option.start() - starts[nearest] < _COMMAND:
            known = _ROWS[programs[nearest][2] - 1][1].split()
            if "\n" in text[programs[nearest][1] : option.start()]:
                known = []
        if separate in known or (glued and f"{glued}+" in known):
            yield option.end(), _is_no_port
        elif separate in ("-p", "-P", "-pw"):
            yield option.end(), _is_mixed_option
        elif separate and f"{separate}:" in known:
            yield option.end(), values.is_mixed_user
        elif (user and f"{user}{sign}" in known) or user is separate is glued or (user in (
         "-u", "-U") and sign in ":%"):
            yield option.end(), _is_no_port


def _is_no_port(value: str) -> bool:
    return _PORTS.match(value) is None


def _is_mixed_option(value: str) -> bool:
    return _PORTS.match(value) is None and values.is_mixed(value) and _STRONG.search(value) is not None


def _is_link_token(value: str) -> bool:
    value = value.partition("?")[0].partition("&")[0].partition("#")[0]
    return values.is_random(value) and _DATED.search(value) is None


_DATED: Final = re.compile(r"(?:19|20)\d\d-\d\d")

# ---------------------------------------------------------------- places

_TEXT: Final = r"(?:\\{0,3}[\"'][^\"'\n]{0,200}[\"']|[\w.$]{1,60})"
_STDIN: Final = (
    r"(?:sudo[ ][\-\w ]{0,40}?-\w{0,4}S|[^\n|]{0,120}?(?:--password-stdin|--with-token|--token-stdin"
    r"|--passphrase-fd|--stdin|"
    r"chpasswd|smbpasswd|vncpasswd|\bpasswd|cryptsetup|kinit|secret (?:create|put|set)|secrets (?:set|put)|su -))"
)
_HEREDOC: Final = r"<<-?[ ]?[\"']?\w{1,40}[\"']?"
_SECRET_FILE: Final = r"[^\s<>]{0,100}(?:token|secret|passw(?:or)?d|credential|\.key|\.pw)\w{0,12}(?:\.\w{1,8})?[\"']?"
_ONE_LINE: Final = r"[ ]{0,4}\n[ \t]{0,20}(?=[^\s:=]{6,400}[ \t]{0,20}\n)"
# (what every text has in which the pattern may match, in small letters; what stands before the secret; what it must be)
_PLACES: Final[tuple[tuple[str, str, Fit | None], ...]] = (
    ("|", rf"\b(?:echo|printf)(?:[ ]-[neE]{{1,3}}|[ ][\"']%s(?:\\\\?n)?[\"'])?[ ](?=[^\n|]{{1,300}}\|[ "
          rf"]?{_STDIN})", None),
    (">", r"\b(?:echo|printf)(?:[ ]-[neE]{1,3})?[ ](?=[^\n>]{1,200}+>[ ]?([^\s;&|]{1,100}+)[^\n]{0,120}?"
          r"(?:password|pass|passphrase|token|secret|key)-?file[= ]\1)", None),
    (">", rf"\b(?:echo|printf)(?:[ ]-[neE]{{1,3}})?[ ](?=[^\n>]{{1,200}}+>{{1,2}}[ ]?{_SECRET_FILE}(?:\s|[;&]|$))",
     values.is_odd),
    ("assword:", r"assword:?[ ]?\*?\\{0,3}[\"'][^\n]{0,40}(?:\\n|\s){1,8}send(?:line)?[ ](?:--[ ])?"
                  r"(?=\\{0,3}[\"'])", None),
    ("/private-", r"/private-(?=[0-9a-f]{32}\b)", None),
    ("<<<", r"(?:-S|--password-stdin|--with-token|chpasswd|kinit|passwd)\b[^\n<]{0,120}<<<[ ]?", None),
    ("htpasswd", r"\bhtpasswd(?=[^\n]{0,40}[ ]-\w{0,6}b)(?:[ ]-\w{1,8}){0,3}[ ]-\w{0,6}n\w{0,6}(?:[ "
                 r"]-\w{1,8}){0,3}[ ][\w.@\-]{1,64}[ ]", None),
    ("htpasswd", r"\bhtpasswd(?=[^\n]{0,40}[ ]-\w{0,6}b)(?:[ ]-[^\sn]{1,8}){1,4}[ ][^\s\-]\S{0,200}[ "
                 r"][\w.@\-]{1,64}[ ]", None),
    ("net use", r"\b(?i:net use)[ ](?:\w:[ ]|\*[ ])?\\\\\S{1,200}[ ](?![/*])", None),
    ("net use", r"\b(?i:net use)[ ][^\n]{1,200}?/user:\S{1,80}[ ](?![/*])", None),
    ("net user", r"\b(?i:net user)[ ][^\s/]{1,64}[ ](?![/*])", None),
    ("configure set", r"\bconfigure set[ ][\w.\-]{0,40}(?:secret|token|key|password)\w{0,30}[ ]", None),
    ("secret set", r"\bsecret set\b[^\n|;]{0,160}?[ ](?:--body|-b|--value)[ =]", None),
    ("secrets set", r"\b(?i:secrets set)[ ](?:-\w{1,10}[ ]\S{1,40}[ ])?[\w.\-]{1,60}=", None),
    ("create secret", r"--from-literal[= ][\"']?[\w.\-]{1,60}=", None),
    ("vault login", r"\bvault login[ ](?![\-\w]{0,40}=)", values.is_odd),
    ("rabbitmqctl", r"\brabbitmqctl[ ](?:-\w[ ]\S{1,60}[ ])?(?:add_user|change_password)[ ]\S{1,64}[ ]", None),
    ("wpa_passphrase", r"\bwpa_passphrase[ ](?:\"[^\"\n]{1,64}\"|\S{1,64})[ ]", None),
    ("-passwd /", r"-passwd[ ]/\S{1,80}[ ]", None),
    ("identify", r"\b(?i:nickserv[ ]:?identify)[ ]", None),
    ("auth ", r"\bAUTH[ ](?:[a-z]{1,20}[ ])?", values.is_odd),
    ("snmp", r"\bsnmp(?:-server)?[ ](?:community|host[ ]\S{1,60}(?:[ ]version[ ]\S{1,3})?)[ ](?!public\b)", None),
    ("community", r"\br[ow]community6?[ ](?!public\b)", None),
    ("psk", r"\bpsk[ ](?:ascii|hex)[ ](?:\d[ ])?", None),
    ("key", r"\b(?:isakmp|tacacs|radius|tacacs-server|radius-server)\b[^\n]{0,60}?[ ]key[ ](?:\d[ ])?", values.is_odd),
    ("", r"(?i:\b(?:password|secret|key|key-string|md5|pre-shared-key))[ ](?:[05789]|encrypted|sha\d{1,3}"
         r"|plain-text|ascii-text)[ ](?=\S{5})", values.is_mixed),
    ("jdbc:oracle", r"jdbc:oracle:\w{1,8}:[^\s/@:]{1,64}/", None),
    ("sqlplus", r"\bsqlplus(?:[ ]-\w{1,4}){0,4}[ ][\"']?[^\s/@\"']{1,64}/", None),
    ("dp ", r"\b(?:exp|imp|expdp|impdp)[ ](?:userid=)?[^\s/@]{1,64}/", values.is_mixed),
    ("", r"(?m)^[^\s:#/]{1,100}:(?:\d{2,5}|\*):[^\s:]{1,64}:[^\s:]{1,64}:(?=[^\s:]{3,200}$)", None),
    ("login", r"\blogin[ ]\S{1,64}\s{1,20}password[ ]", None),
    ("_auth", r"(?<!\w)_auth[ ]?=[ ]?", None),
    ("auth", r"\"auth\\{0,7}\"\s{0,3}:\s{0,3}(?=\\{0,7}\"[A-Za-z0-9+/]{12,400}={0,2}\\{0,7}\")", None),
    ("pass ", r"(?m)^USER[ ]\S{1,64}\s{1,4}PASS[ ]", None),
    ("", r"(?i)(?:mật khẩu|mat khau|kata sandi|รหัสผ่าน|كلمة (?:المرور|السر)|पासवर्ड)\s{0,2}[:：=]\s{0,2}", None),
    ("wifi:", r"\bWIFI:[^\n]{0,120}?;P:", None),
    ("securestring", r"(?i:ConvertTo-SecureString(?:[ ]-\w{1,20}){0,3})[ ](?=[\"'])", None),
    ("(", r"(?:NetworkCredential|UserPassword|HTTPBasicAuth|HTTPDigestAuth|BasicAuth|UsernamePasswordCredentials"
          r"|PasswordAuthentication|"
     r"UsernamePasswordAuthenticationToken|basic_auth|basicAuth|SetBasicAuth|login|signIn|sign_in|authenticate|auth|"
     rf"[cC]redentials)[ ]?=?[ ]?\(\s{{0,20}}{_TEXT}[ ]?,\s{{0,20}}(?=\\{{0,3}}[\"'])", None),
    ("conn", rf"(?:getConnection|connect)[ ]?\((?:\s{{0,20}}{_TEXT}[ ]?,){{2}}\s{{0,20}}(?=\\{{0,3}}[\"'])", None),
    ("(", rf"\b(?:mysqli(?:_connect)?|PlainAuth|ftp_login|ldap_bind|imap_open|ssh2_auth_password)[ ]?\("
          rf"(?:\s{{0,20}}{_TEXT}[ ]?,){{2}}\s{{0,20}}(?=\\{{0,3}}[\"'])", None),
    ("crypt", r"(?i)\b(?:pgp_sym_(?:en|de)crypt(?:_bytea)?|(?:aes_|des_)?(?:en|de)crypt)[ ]?\("
              r"(?:[^()\n,]{1,200}|[^()\n,]{0,100}\([^()\n]{0,100}\)[^()\n,]{0,100}),\s{0,20}(?=\\{0,3}')", None),
    ("random_password", r"\\{0,3}\"random_password\\{0,3}\"[^}]{0,1000}?\\{0,3}\"result\\{0,3}\"\s{0,4}:\s{0,4}", None),
    ("accounts", r"\baccounts\s{0,4}:\s{0,4}\[\s{0,20}(?=[\"'](?:0x)?[0-9a-fA-F]{64}[\"'])", None),
    ("<<", rf"(?:{_STDIN}|[ ]login\b)[^\n<]{{0,120}}{_HEREDOC}[^\n]{{0,80}}\n[ \t]{{0,20}}(?:[\w.\-]{{1,64}}:)?", None),
    ("<<", rf"{_HEREDOC}[ ]{{0,4}}(?:>{{1,2}}|\|[^\n]{{0,40}}tee)[ ]{{0,4}}{_SECRET_FILE}{_ONE_LINE}", None),
    ("<<", rf">{{1,2}}[ ]{{0,4}}{_SECRET_FILE}[ ]{_HEREDOC}{_ONE_LINE}", None),
    ("pdo", rf"\bPDO[ ]?\((?:\s{{0,20}}{_TEXT}[ ]?,){{2}}\s{{0,20}}(?=[\"'])", None),
    ("ac", r"[\"']AC[0-9a-f]{32}[\"'][ ]?,[ ]?", None),
    ("login(", r"\.login\([ ]?(?=[\"'][^\"']{24,200}[\"'])", None),
    ("(", r"\b(?:Fernet|SecretKeySpec|AES\.new|hmac\.new|createHmac\([\"'][\w\-]{1,20}[\"'],|jwt\.(?:sign|verify"
          r"|encode|decode)\([^,\n]{1,80},)\(?[ ]?b?(?=[\"'])", None),
    ("identified", r"(?i)\bidentified\s{1,4}(?:with\s{1,4}\S{1,40}\s{1,4})?(?:by"
                   r"|as)\s{1,4}(?:password\s{1,4})?(?=[\"'])", None),
    ("<input", r"(?i)<input\b(?=[^<>]{0,300}type=\\{0,3}[\"']?password)[^<>]{0,300}?\svalue=", None),
    ("code", r"(?i)\b(?:your|use|enter|the)\b(?![^\n.]{0,40}\b(?:zip|postal|post|error|status|exit|area|country"
             r"|response|return|"
     r"http|product|source|dress|color|item|order|course)\b)[^\n.\d]{0,60}\bcode\b[^\n.\d]{0,40}?(?:is|:"
     r"|=)\s{0,2}(?=\d{4,8}\b|\d{3}[- ]\d{3}\b)", None),
    ("", r"\b(?=[\dA-Z\-]{4,10} (?:is your|as your|as the|ist Ihr|ist dein)\b)", values.is_mixed_or_number),
    (" as ", r"(?<=\s)(?=[\"'`]?[^\s\"'`]{5,64}[\"'`]? as (?:the |a |my |your )?(?:password|passphrase|token|secret"
             r"|pin|passwort)\b)", values.is_odd),
    ("%5b", r"(?i)%5b\w{0,20}(?:password|passwd|pass|pwd|token|secret|pin|otp)\w{0,20}%5d=", None),
    ("/p:", r"(?<![\w/.])/p:(?=\S)", _is_no_port),
    ("/", r"(?i)/(?:reset|invit|magic|verif|confirm|activat|recover|unlock|log-?in|sign-?in|password|auth|token"
          r"|secret)[\w\-]{0,24}(?:/|/?\?(?:[\w\-]{1,20}=[^\s&]{0,60}&){0,3}[\w\-]{1,20}=)"
          r"(?=[\w~\-]{20,512}(?:[\s\"'<>&?#)\\]|$|[.,](?:\s|$)))", _is_link_token),
    (" / ", r"(?i)\b(?:log ?in|sign ?in|login|logon|creds|credentials?|access|zugang|acceso)\b[^\n/]{0,100}+/[ "
            r"]", values.is_odd),
)  # fmt: skip
_COMPILED: Final = tuple((needs, re.compile(pattern), fit) for needs, pattern, fit in _PLACES)
# What of these no name of a secret is in, so that a text must be looked at for their sake.
HINTS: Final = (
    "net use", "net user", "rabbitmqctl", "identify", "snmp", "communit", "jdbc:oracle", "sqlplus", "login", "log in",
    "sign in", "wifi:", "mysqli", "plainauth", "ftp_login", "ldap_bind", "imap_open", "ssh2_auth", "crypt(", "accounts",
    "crypt_bytea(", "<<", "/reset", "/invit", "/magic", "/verif", "/confirm", "/activat", "/recover", "/unlock",
    "pdo(", "/private-", "userpassword", "is your", "ist ihr", "ist dein", "as your", "as the", "mat khau",
    "kata sandi", "isakmp", "/p:", "fernet(",
    "aes.new", "hmac", "sudo -s", "securestring", "kinit", "cryptsetup", "7z", "logon", "zugang", "acceso", "access",
    "signin", "sign_in", "twilio", "expdp", "impdp", "su -", "assword",
)  # fmt: skip


def places(text: str) -> Iterator[tuple[int, Fit | None]]:
    """Where secrets begin that have no name, and what they must be like."""
    yield from _options(text)
    small = text.lower()
    for needs, pattern, is_fit in _COMPILED:
        if needs in small:
            yield from ((found.end(), is_fit) for found in pattern.finditer(text))


# ---------------------------------------------------------------- tables

INSERT: Final = re.compile(r"(?i)\binsert\s{1,4}into\s{1,4}[\w.\"`\[\]]{1,100}\s"
                            r"{0,4}\(([^()]{1,1000})\)\s{0,4}values\s{0,4}")
_TUPLE: Final = re.compile(r"\(((?:[^()'\"]|'(?:[^'\\]|''|\\.){0,2000}'|\"[^\"]{0,2000}\""
                           r"|\([^()]{0,100}\)){0,4000})\)\s{0,4},?\s{0,4}")
_ITEM: Final = re.compile(r"\s{0,20}('(?:[^'\\]|''|\\.){0,2000}'|\"[^\"]{0,2000}\"|[^,]{1,2000})\s{0,4}(?:,|$)")
_MANIFEST: Final = re.compile(r"(?m)^([ ]{0,20})(?:data|stringData):[ ]*\n((?:\1[ ]+[^\n]*(?:\n|$)){1,400})")
_ENTRY: Final = re.compile(r"(?m)^[ ]{1,40}[\"']?[\w.\-]{1,100}[\"']?:[ ]{1,20}(?![|>][+\-]?[ ]*$)(\S[^\n]*?)[ ]*$"
                           r"|^[ ]{1,40}([^\s:]{4,4000})[ ]*$")
_DELIMITERS: Final = (re.compile(r"[ \t]*\|[ \t]*"), re.compile(
 r"\t"), re.compile(r"[ ]{2,60}"), re.compile(r"[ ]*;[ ]*"), re.compile(r",[ ]*"))
_RULE: Final = re.compile(r"[\s\-+|=:─┼│┤├]+")
_CELLS: Final = re.compile(r"[^\s|,;][ ]*[|\t,;][ ]*[^\s|,;]|\S[ ]{2}[ ]*\S")
_COOKIES: Final = re.compile(  # RFC 6265 4.2.1; where there is one, it is the value of a name
    r"(?i)(?<![\w\-])cookie[ \t]{0,2}:[ \t]{0,4}"
    r"((?:[^\s=;,\"']{1,128}=[^\s;,\"']{0,4096};[ ]?){1,100}[^\s=;,\"']{1,128}=[^\s;,\"']{0,4096})"
)
_MAX_CELLS: Final = 64
_MAX_LINE: Final = 4_096


def cells(text: str, is_secret: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    """The values in columns of secrets: of `INSERT`, of tables with a line of names, of Kubernetes' secrets, and all
    cookies of a request."""
    yield from (found.span(1) for found in _COOKIES.finditer(text))
    for insert in INSERT.finditer(text):
        columns = [is_secret(name.strip(" \t\r\n\"`[]")) for name in insert[1].split(",")]
        at = insert.end()
        while any(columns) and (row := _TUPLE.match(text, at)):
            at = row.end()
            for is_column, item in zip(columns, _ITEM.finditer(text, row.start(1), row.end(1)), strict=False):
                if is_column and not values.is_no_value(item[1].strip("'\"")):
                    yield item.span(1)
    if "kind: Secret" in text:
        for block in _MANIFEST.finditer(text):
            for entry in _ENTRY.finditer(text, block.start(2), block.end(2)):
                span = entry.span(entry.lastindex or 1)
                if not values.is_no_value(text[slice(*span)].strip("\"'")):
                    yield span
    if "\n" in text:
        yield from _columns(text, is_secret)


def _columns(text: str, is_secret: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    at = 0
    delimiter: re.Pattern[str] | None = None
    wanted: list[bool] = []
    for line in text.splitlines(keepends=True):
        start, at = at, at + len(line)
        if len(line) > _MAX_LINE:
            delimiter = None
        elif delimiter is not None and _RULE.fullmatch(line):
            continue
        elif delimiter is not None and len(row := _split(line, delimiter)) == len(wanted):
            for is_column, (left, right) in zip(wanted, row, strict=True):
                value = line[left:right]
                if is_column and value.strip("-: =") and values.is_column_value(value.strip("`\"'*")):
                    yield start + left, start + right
        else:
            delimiter, wanted = _header(line, is_secret) if _CELLS.search(line) else (None, [])


def _header(line: str, is_secret: Callable[[str], bool]) -> tuple[re.Pattern[str] | None, list[bool]]:
    for delimiter in _DELIMITERS:
        names = [line[left:right].strip("`\"'* ") for left, right in _split(line, delimiter)]
        if 2 <= len(names) <= _MAX_CELLS and all(
            len(name) <= 40 and name[:1] != "-" and name.count(
             " ") <= 2 and not set(name) & set("=:(){}<>$/,") and not _DATED.search(name) for name in names
        ):
            found = [is_secret(name) for name in names]
            has_numbers = any(name.isdecimal() for name in names)
            if any(found) and not all(found) and not has_numbers and sum(map(bool, names)) >= 2:
                return delimiter, found
    return None, []


def _split(line: str, delimiter: re.Pattern[str]) -> list[tuple[int, int]]:
    """The places of a line's cells."""
    end = len(line.rstrip())
    found, at = [], len(line) - len(line.lstrip())
    for count, cut in enumerate(delimiter.finditer(line, at, end)):
        if count > _MAX_CELLS:
            return []
        found.append((at, cut.start()))
        at = cut.end()
    return [*found, (at, end)]
