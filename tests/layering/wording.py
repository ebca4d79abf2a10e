"""Measures of names and sentences: words that only this project uses, tags with two meanings, functions whose names are
one word, comments beside the code, and kinds of sentences that a reader has to read twice. Each function takes
{path: text} and yields findings as "path:line what"."""
import ast
import re

# {private word: word of the field to use instead} (docs/glossary.md). A name counts if one of its parts is such a word.
PRIVATE_WORDS = {
    "errand": "transfer", "errands": "transfers", "flight": "operation", "flights": "operations",
    "land": "complete", "landed": "completed", "note": "saved message", "notes": "saved messages",
    "parked": "pending rendezvous", "tender": "progress thread", "ground": "callbacks", "restless": "needs poll",
    "starved": "out of memory", "fate": "send status", "guest": "pending connection", "twin": "loopback peer",
    "card": "address", "cards": "addresses", "duel": "A/B test", "parcel": "control message",
    "letter": "control message",
    "letters": "control messages", "verdict": "join result", "announcement": "join result", "crossing": "link cost",
    "crossings": "link costs", "sharers": "shared memory group", "figures": "parameters", "pretends": "simulates",
    "pretended": "simulated", "accord": "agreement", "rests": "deferred", "ladder": "backoff", "rung": "backoff step",
    "climb": "back off", "patience": "spin budget", "ventures": "candidates", "contender": "candidate",
    "enlist": "list_add", "backlog": "run queue", "house": "strategy", "journal": "trace", "forecast": "prefetch",
    "silence": "peer timeout", "beat": "heartbeat", "meeting": "barrier", "tail": "async step",
}
# Sentences that a reader has to read twice. A finding quotes the first group of the pattern.
PATTERNS = {
    "clause as subject": r"(?:^|[.:;] )((?:Who|What|Whoever|Whatever|Whose) (?:\w+ ){0,3}\w+)",
    "object first": r"(?:^|[.;] )(Of (?:a|an|the|one|each|all|what|those|several)\b)",
    "headless": r"^((?:Of|By|The same|As|Likewise)\b)",
    "speech for I/O": r"\b((?:says|hears|tells) (?:so|it|that|of|how|what|no)\b)",
    "double negative": r"\b((?:nobody|nothing|none) (?:\w+ )?(?:but|else|is|has|waits|knows|reads)\b)",
    "not to be had": r"\b(cannot be had|is to be had|there is none|of no use|needs not)\b",
    "old turns": r"\b(in vain|for ever|anew|to the bit|nevertheless)\b",
}
# A docstring begins with a verb ("Returns …") or a noun ("The state of …"), and so does each of its paragraphs.
PATTERNS_OF_DOCSTRINGS = {
    "clause as subject": PATTERNS["clause as subject"],
    "object first": PATTERNS["object first"],
    "no verb or noun first": r"^((?:Of|By|The same|As|Likewise|That|Those|Where|Which)\b)",
}
COMMENT = re.compile(r"/\*(.*?)\*/|//([^\n]*)", re.DOTALL)
LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"')
FUNCTION = re.compile(r"^(static )?(?:inline )?(?:const )?(?:struct |enum |union )?[A-Za-z_][\w:<>]*(?: const)?[ *&]+"
                      r"(?:__attribute__\(\([^)]*\)\) )?([a-z_]\w*)\([^;{}]*\)\s*\{", re.MULTILINE)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def without_comments(text):
    return COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def private_words(files):
    for path, text in files.items():
        code = LITERAL.sub(lambda found: " " * len(found.group()), without_comments(text))
        for found in re.finditer(r"[A-Za-z_]\w*", code):
            # "in flight" is also a term of the field.
            name = re.sub("in_flight", "", found.group(), flags=re.IGNORECASE)
            for part in re.findall(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]+", name):
                if part.lower() in PRIVATE_WORDS:
                    yield f"{path}:{line_of(text, found.start())} {found.group()}: say {PRIVATE_WORDS[part.lower()]}"


def homonyms(files):
    """Yields tags of structs, enums and unions that are defined in two or more files."""
    places = {}
    for path, text in files.items():
        for found in re.finditer(r"\b(?:struct|enum|union)\s+(\w+)\s*\{", without_comments(text)):
            places.setdefault(found.group(1), set()).add(path)
    for tag, where in sorted(places.items()):
        if len(where) > 1:
            yield f"{tag}: {', '.join(sorted(where))}"


def functions(files):
    """Yields (path, name, whether it is static) of each function definition."""
    for path, text in files.items():
        for found in FUNCTION.finditer(without_comments(text)):
            yield path, found.group(2), bool(found.group(1))


def one_word_statics(files):
    for path, name, static in functions(files):
        if static and "_" not in name and name != "main":
            yield f"{path} {name}"


def words_of_a_name(files):
    """Returns the mean number of words in the names of all functions."""
    counts = [len([part for part in name.split("_") if part]) for _, name, _ in functions(files)]
    return sum(counts) / len(counts)


def trailing_comments(files):
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(r"\S.*?/\*[^*]*\*/\s*\\?$", line) and not line.lstrip().startswith(("/*", "*", "//")):
                yield f"{path}:{number}"


def sentences_of_comments(text):
    """Yields (line, text) of each comment, with its lines joined."""
    for found in COMMENT.finditer(text):
        words = re.sub(r"\s*\n\s*(?:\*|//)?\s*", " ", found.group(1) or found.group(2) or "").strip()
        yield line_of(text, found.start()), re.sub(r"^-+ .* -+$", "", words)


def sentences_of_literals(text):
    for found in LITERAL.finditer(without_comments(text)):
        if found.group(1).count(" ") >= 2:
            yield line_of(text, found.start()), found.group(1)


def sentences_of_pages(text):
    prose = re.sub(r"```.*?```|^\|.*\|$|`[^`\n]*`", lambda found: re.sub(r"[^\n]", " ", found.group()), text,
                   flags=re.DOTALL | re.MULTILINE)
    for found in re.finditer(r"(?:^|\n\n)(?:[-*#>]+ )?(.+?)(?=\n\n|\n[-*] |\Z)", prose, re.DOTALL):
        yield line_of(prose, found.start(1)), re.sub(r"\s*\n\s*", " ", found.group(1)).strip("*# ")


def paragraphs_of_docstrings(text):
    """Yields (line, words) for each paragraph of the strings that are statements in a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for found in re.finditer(r"\S.*?(?=\n\s*\n|\Z)", node.value.value, re.DOTALL):
                line = node.lineno + node.value.value.count("\n", 0, found.start())
                yield line, re.sub(r"\s+", " ", found.group())


def pattern_hits(files, sentences, patterns=PATTERNS):
    for path, text in files.items():
        for line, words in sentences(text):
            for name, pattern in patterns.items():
                for found in re.finditer(pattern, words):
                    yield f"{path}:{line} {name}: {found.group(1)}"
