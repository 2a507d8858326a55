package condition

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
)

// A kind is the kind of content in a string, such as a path. It is guessed from the function that returns the string,
// the text with which the string is compared, and the name of the string.
type kind int

const (
	plainText kind = iota
	pathText
	urlText
	hostText    // the result of url.host or email.domain
	mailText    // an email address
	commandText // a command line of a shell
)

// kindSuggestions contains the replacement for a string test, by kind of string.
var kindSuggestions = map[kind]string{
	pathText:    `use path.within(x, "/srv"), path.base(x) or path.ext(x)`,
	urlText:     `use url.under(x, "https://api.example.com/v1"), or compare url.scheme(x), url.host(x) and url.path(x)`,
	hostText:    `compare it with ==, or use endsWith with a dot first: endsWith(".example.com")`,
	mailText:    `compare email.domain(x) with ==`,
	commandText: `compare the whole command: x in ["make test", "git status"]`,
}

// kindExamples contains examples of strings that a string test would wrongly accept, by kind of string.
var kindExamples = map[kind]string{
	pathText:    `"/srv/../etc" begins with "/srv"`,
	urlText:     `"https://api.example.com@evil/" begins with "https://api.example.com"`,
	hostText:    `"evilexample.com" ends with "example.com", and "api.evil" begins with "api."`,
	mailText:    `"a@evil, b@example.com" ends with "@example.com"`,
	commandText: `"git status; rm -rf ." begins with "git status"`,
}

// checkTexts returns a function that refuses misleading string tests. These are tests on parts of a path or URL, for
// example, and patterns that do not match a whole string.
func checkTexts(refuse refuseFunc) func(e ast.Expr, from []*location) {
	return func(e ast.Expr, from []*location) {
		function, of, with, ok := tested(e.AsCall())
		if !ok {
			return
		}
		text, _ := stringLiteral(with)
		kind := kindOfText(function, of, text, from)
		if function == "matches" {
			checkMatches(kind, text, with, refuse)
			return
		}
		if kind == commandText && (function == "contains" || function == "endsWith") {
			return // such a condition does not claim to understand the command
		}
		if kind == plainText || kind == hostText && function == "endsWith" && strings.HasPrefix(text, ".") {
			return
		}
		refuse(e, fmt.Sprintf("%s does not safely test %s: %s", function, kind, kindExamples[kind]), kindSuggestions[kind])
	}
}

// tested returns the called function, the string that it tests, and the text with which it compares the string. A
// comparison of a string with a literal by < or a similar operator counts as startsWith, because strings that start
// with the literal sort after it.
func tested(call ast.CallExpr) (function string, of, with ast.Expr, ok bool) {
	args := call.Args()
	symbol, order := operators.FindReverseBinaryOperator(call.FunctionName())
	switch {
	case !order:
		return call.FunctionName(), call.Target(), args[0], call.Target() != nil && len(args) == 1
	case isStringLiteral(args[1]):
		return symbol, args[0], args[1], true
	default:
		return symbol, args[1], args[0], isStringLiteral(args[0])
	}
}

// checkMatches refuses a pattern without anchors. For paths, URLs and email addresses, it also refuses a pattern that
// accepts `..` or one of the [tricks]. For commands, it refuses a pattern that accepts special characters of the shell.
func checkMatches(of kind, text string, at ast.Expr, refuse refuseFunc) {
	pattern, err := syntax.Parse(text, syntax.Perl)
	if err != nil || instructions(pattern) > maxPattern {
		return // checkPattern refuses the pattern
	}
	switch {
	case !anchored(pattern) && of == plainText:
		refuse(at, "the pattern has no anchors, so it matches any text that contains a match", "write ^(?:…)$ for the whole text; contains(…) finds a part")
	case !anchored(pattern):
		refuse(at, "the pattern has no anchors: "+kindExamples[of], kindSuggestions[of])
	case of == commandText && admits(pattern, ";|&$`<>(\n"):
		refuse(at, "the pattern accepts characters with which a shell runs another command: "+kindExamples[of], kindSuggestions[of])
	case of != plainText && of != hostText && of != commandText && admitsTricks(pattern):
		refuse(at, "the pattern accepts .. or one of \\ % @ ? #, with which a text can be another path or URL than it seems", kindSuggestions[of])
	}
}

func (k kind) String() string {
	return map[kind]string{pathText: "a path", urlText: "a URL", hostText: "a host", mailText: "an email address", commandText: "a command"}[k]
}

// kindOfText guesses the kind of a string from the function that returns the string, the text with which the string is
// compared, and the name of the argument.
func kindOfText(function string, of ast.Expr, with string, from []*location) kind {
	if of.Kind() == ast.CallKind {
		switch of.AsCall().FunctionName() {
		case "url.path":
			return urlText
		case "url.host", "email.domain":
			return hostText
		case "path.base", "path.ext":
			return plainText
		}
	}
	if k := kindOfPart(function, with); k != plainText {
		return k
	}
	for _, p := range from {
		if k := kindOfName(p.name); k != plainText {
			return k
		}
	}
	return plainText
}

// kindOfPart guesses the kind of a string from the text with which it is compared, which may look like a part of a path
// or URL. A single separator is not enough, because other kinds of strings also contain separators.
func kindOfPart(function, with string) kind {
	with = strings.ReplaceAll(strings.ReplaceAll(with, `\/`, "/"), `\.`, ".")
	_, behind, hasHost := strings.Cut(with, "://")
	start := with
	if function == "matches" {
		start = strings.TrimLeft(with, "^(?:")
	}
	begins := function != "endsWith" && function != "contains"
	switch {
	case hasHost && (begins || behind != ""),
		begins && (strings.HasPrefix(strings.ToLower(start), "http") || strings.HasPrefix(start, "www.") || strings.HasPrefix(start, "//")):
		return urlText
	case strings.HasPrefix(start, "/") && (begins || start != "/"), strings.Contains(start, "../"), start == "..",
		begins && (strings.HasPrefix(start, "./") || strings.HasPrefix(start, "~")):
		return pathText
	case function == "endsWith" && strings.HasPrefix(with, "@") && strings.Contains(with, "."):
		return mailText
	}
	return plainText
}

// nameWords maps the last word of an argument's name to the argument's kind. nameEnds contains those words from
// nameWords that also count if they are only the end of a longer word.
var (
	nameWords = map[string]kind{
		"path": pathText, "file": pathText, "filename": pathText, "dir": pathText, "directory": pathText, "folder": pathText, "cwd": pathText,
		"url": urlText, "uri": urlText, "href": urlText, "link": urlText, "endpoint": urlText, "webhook": urlText,
		"command": commandText, "cmd": commandText,
	}
	nameEnds = []string{"path", "filename", "directory", "folder", "url", "uri"}
)

// kindOfName guesses the kind of an argument from the last word of its name, singular or plural. Examples are
// `filePaths`, `base_url` and `dir`.
func kindOfName(name string) kind {
	last := strings.ToLower(lastWord(name))
	for _, word := range []string{last, strings.TrimSuffix(last, "s"), strings.TrimSuffix(last, "ies") + "y"} {
		if k := nameWords[word]; k != plainText {
			return k
		}
		if i := slices.IndexFunc(nameEnds, func(end string) bool { return strings.HasSuffix(word, end) }); i >= 0 {
			return nameWords[nameEnds[i]]
		}
	}
	return plainText
}

// lastWord returns the last word of a name. Words are separated by characters that are not letters. A new word also
// begins at a capital letter after a lower-case letter.
func lastWord(name string) string {
	letters := []rune(strings.TrimRightFunc(name, func(r rune) bool { return !unicode.IsLetter(r) }))
	for i := len(letters) - 1; i > 0; i-- {
		before, r := letters[i-1], letters[i]
		if !unicode.IsLetter(before) || unicode.IsUpper(r) && unicode.IsLower(before) {
			return string(letters[i:])
		}
	}
	return string(letters)
}

// NamesPath reports whether an argument's name suggests that the argument is a path.
func NamesPath(name string) bool { return kindOfName(name) == pathText }
