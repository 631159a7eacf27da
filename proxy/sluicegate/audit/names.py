"""Which names are those of secrets: of members, variables, options, columns, form fields. Pure."""

import re
import unicodedata
from typing import Final

MAX_NAME: Final = 256
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[\W_]+")
_OPERATOR_FORM: Final = re.compile(r"[_\-\s.]")
_HAS_SPELLING: Final = re.compile(r"[^A-Za-z_\-. ]")
# Letters that look like others, and digits and signs that stand for letters.
_LOOKS_LIKE: Final = str.maketrans("аеорсухіѕԁкмтнАЕОРСУХІЅКМТНВαοεινρτυκ", "aeopcyxisdkmthaeopcyxiskmthbaoeivptuk")
_STANDS_FOR: Final = str.maketrans("01345$@!", "oleassai")
# Names that end like this, without separators: `db_password`, `X-Api-Key`, `clientSecret`.
_ENDS: Final = re.compile(
    r"(?:passwords?|passwds?|passwrd|passphrases?|passcodes?|pwds?|psk|secrets?|token|"
    r"(?:access|refresh|auth|api|bearer)tokens|(?:api|access|secret|private|encryption|decryption|signing|signature"
    r"|master|"
    r"account|storage|service|subscription|licen[cs]e|app|application|validation|client|deploy|shared|preshared|auth|session|hmac|aes|ssh"
    r"|webhook|"
    r"consumer|admin|root|write|server|ingest|sas|cipher|crypto|wifi|wpa|jwt|integration|host|function|unseal|"
    r"stripe|openai|anthropic|sendgrid|twilio|mailgun|gemini|maps|azure|aws|datadog|sentry|algolia|github|gitlab"
    r"|slack|groq|"
    r"mistral|cohere|deepseek|pinecone|supabase|firebase|newrelic|cloudflare|servicerole|heroku|recaptcha|tavily)keys?|"
    r""
    r"codeverifier|clientassertion|samlresponse|authcode|(?:creditcard|cc|pan)(?:number|num)|accesskeyid|authorization|credentials?|creds|cookies?|bearer|jwt|[th]?otp(?:codes?)?|pincode|pinnumber|cvv2?|cvc2?|dsn|"
    r"connectionstring|sessionid|sessid|sessiontoken|(?:seed|recovery|mnemonic|secret)(?:phrase|words)|mnemonic|"
    r"securityanswer|requirepass|(?:recovery|backup|mfa|2fa|sms|verification|security|access|auth|authentication|login|"
    r"onetime|twofactor|alarm|door|gate|safe|unlock|entry|confirmation|disarm|pin|sicherheits|bestatigungs"
    r"|verifizierungs|freischalt|aktivierungs|einmal)codes?|identifiedby|"
    r"(?:db|root|user|admin|smtp|ldap|become|http|sudo|ssh|ftp|mail|default|proxy|key|store|keystore|vault|my|sql|bind|"
    r"redis|mongo|pg|vnc|wifi|login|encryption|sudo)pass)$"
)
# Names of passwords in other languages, without accents where a letter has one.
FOREIGN: Final = tuple(
    "kennwort kennworter zugangscode zugangsdaten passwort passworter motdepasse motsdepasse mdp contrasena clave "
    "senha "
    "palavrapasse parola parolachiave password hasło haslo wachtwoord toegangscode losenord losenordet adgangskode "
    "kodeord passord "
    "salasana heslo jelszo sifre lozinka geslo slaptazodis parool katasandi matkhau codigodeacceso clausecrete "
    "пароль пароля лозинка парола токен секретныйключ κωδικος סיסמה كلمةالمرور كلمةالسر पासवर्ड รหัสผ่าน パスワード "
    "暗証番号 合言葉 トークン シークレット 密码 密碼 口令 密钥 秘钥 私钥 令牌 비밀번호 암호 토큰".split()
)
_FOREIGN_ENDS: Final = re.compile(f"(?:{'|'.join(FOREIGN)})$")
# Short words count alone or as the last of several: `spin` is no `pin`.
_LAST_WORDS: Final = frozenset("pin pins pass pw tan sid pat passin passout pincode cvv".split())
# What may follow the name of a secret and still be its value: `password_old`, `apiKeyProd`, `SECRET_KEY_BASE`.
_QUALIFIERS: Final = frozenset(
    "old new current previous next confirm confirmation again repeat value raw plain text clear data string base base64"
    " b64 env prod production staging dev test live main primary secondary default backup encrypted enc header hash"
    " hashed admin".split()
)
# What is no secret although it ends like one: places in lists, what a tokenizer knows, keys of requests.
_NO_SECRETS: Final = re.compile(
    r"(?:page|next|continuation|continue|sync|resume|progress|cursor|pagination|delta|change|cancel|cancellation"
    r"|eos|bos|"
    r"pad|padding|unk|unknown|sep|cls|mask|stop|special|end|begin|clientrequest|idempotency|lock|syntax|design"
    r"|color)token|"
    r"existingsecret|(?:password|passwd|token|secret|key|credentials|auth|user(?:name)?)secretkey|"
    r"(?:^|[^a-z])(?:unexpected|illegal|invalid|missing|expired|no|has|is|needs|requires|show|hide|forgot)"
    r"(?:token|password|passwd|secret|credentials|cookie|authorization|apikey)s?$"
)
_NUMBERS_FOR: Final = re.compile(r"(?:code|codes|otp|cvv|cvc|cvv2|cvc2|pin|pins|tan|pincode|passcode|暗証番号)$", re.I)
# What stands behind the name in the label of a form's field.
_FIELD: Final = re.compile(r"(?i)(?:[\W_]|text ?box|field|input|box|entry|edit|text ?area|element|control|id|form"
                           r"|required)+$")
_LABEL_ENDS: Final = re.compile(r"[(:]|\s(?:for|of|on|to|für|de|del|du|от|für|di)\s")


def plain(name: str) -> str:
    """A name without case and separators."""
    return _OPERATOR_FORM.sub("", name).lower()


def hint(name: str) -> str:
    """What every text that has this name, without case and separators, has in its `spelling`."""
    return spelling(name)[:2]


def spelling(text: str) -> str:
    """A text in which names are sought: in small letters, without accents, look-alikes as what they look like."""
    if not text.isascii():
        text = _without_accents(text.lower()).translate(_LOOKS_LIKE)
    return text.lower().translate(_STANDS_FOR)


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    # Marks go first: `normalize` puts a run of them in order in time that grows with the square of its length.
    bare = "".join(char for char in text if not unicodedata.combining(char))
    return "".join(char for char in unicodedata.normalize("NFKD", bare) if not unicodedata.combining(char))


def is_secret_name(name: str) -> bool:
    """Whether values under this name are secrets. Case, separators, look-alike letters and digits do not count."""
    name = name[:MAX_NAME]
    if _is_named(name):
        return True
    if _HAS_SPELLING.search(name) is None:
        return False
    seen = "".join(char for char in _without_accents(name) if char.isprintable() and char < "\U000e0000")
    if _is_named(seen):
        return True
    seen = seen.translate(_LOOKS_LIKE)
    return _is_named(seen) or _is_named(seen.translate(_STANDS_FOR))


def _is_named(name: str) -> bool:
    words = [word.lower() for word in _CAMEL.split(name) if word]
    while words:
        last = words[-1].rstrip("0123456789")
        whole = "".join((*words[:-1], last))
        if last in _LAST_WORDS or _ENDS.search(whole) or _FOREIGN_ENDS.search(whole):
            return _NO_SECRETS.search(whole) is None
        if last and words[-1] not in _QUALIFIERS:
            return False
        words.pop()
    return False


def is_secret_label(text: str) -> bool:
    """Whether what describes a field of a form means a secret's: `Password textbox`, `input#pin`, `PIN (4 digits)`."""
    head = _LABEL_ENDS.split(text[:MAX_NAME], maxsplit=1)[0]
    return is_secret_name(_FIELD.sub("", head)) or is_secret_name(_FIELD.sub("", text[:MAX_NAME]))


def is_word_for_secret(word: str) -> bool:
    """Whether a word is one of a language for a secret: `Passwort`, `PIN`."""
    seen = _without_accents(word[:MAX_NAME].lower())
    return seen in FOREIGN or seen in ("pin", "passphrase", "passcode", "otp", "credentials")


def has_numbers(name: str) -> bool:
    """Whether the secrets of this name are numbers: `pin`, `recoveryCode`."""
    return _NUMBERS_FOR.search(name[:MAX_NAME].rstrip("0123456789")) is not None


def last_word(name: str) -> str:
    """`ParameterValue`, `parameter_value`: `value`."""
    words = [word for word in _CAMEL.split(name[:MAX_NAME]) if word]
    return words[-1].lower() if words else ""
