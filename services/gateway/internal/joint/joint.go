// Package joint maps the names of many servers to one namespace: a combined name of a tool, prompt, resource or
// request contains the server's name and the server's own name. It has no state: everything is in the combined name.
package joint

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// separator separates a server's name from the server's own name for something. A server's name has no
	// underscore, so the first separator counts.
	separator = "__"
	// scheme begins a URI that names its server: `mcp.<server>+<uri>`. It begins with a letter and contains only
	// characters of RFC 3986, section 3.1, so the result is a URI with another scheme.
	scheme = "mcp."
	// maxName is the maximum length of a tool's name: model APIs accept 64 characters, and hosts put their own name
	// for the connection before it (`mcp__sluice__…`). nameRunes are the allowed characters besides letters and
	// digits.
	maxName   = 48
	nameRunes = "_-"
	// digest is how many hexadecimal digits distinguish the aliases of a server.
	digest = 8
)

// Name returns the combined name of a server's prompt or tool.
func Name(server, name string) string { return server + separator + name }

// Cut returns the server of a combined name, and the rest of the name; false if the name contains no server.
func Cut(name string) (server, rest string, ok bool) {
	server, rest, ok = strings.Cut(name, separator)
	return server, rest, ok && server != "" && rest != ""
}

// Tool returns the combined name of a server's tool or, if model APIs would not accept that, an alias. The alias
// depends on the two names only.
func Tool(server, name string) string {
	if joined := Name(server, name); isPlain(joined) {
		return joined
	}
	sum := sha256.Sum256([]byte(name))
	tail := "_" + hex.EncodeToString(sum[:digest/2])
	plain := strings.Map(func(r rune) rune {
		if isPlainRune(r) {
			return r
		}
		return '_'
	}, name)
	head := Name(server, plain)
	return head[:min(len(head), maxName-len(tail))] + tail
}

// Aliases maps the aliases of a server's tools to the tools' own names. An alias that would stand for two tools maps
// to the empty name, because it would be ambiguous.
type Aliases map[string]string

// AliasesOf returns the aliases of a server that lists tools with these names.
func AliasesOf(server string, tools []string) Aliases {
	out, listed := make(Aliases), make(map[string]bool, len(tools))
	for _, name := range tools {
		listed[Name(server, name)] = true
	}
	for _, name := range tools {
		joined := Tool(server, name)
		if joined == Name(server, name) || !isTool(name) {
			continue
		}
		if of, known := out[joined]; listed[joined] || known && of != name {
			name = ""
		}
		out[joined] = name
	}
	return out
}

// Shown returns the combined name or alias of a server's tool; false if it would be ambiguous, or if the tool cannot
// be called.
func (a Aliases) Shown(server, name string) (string, bool) {
	joined := Tool(server, name)
	of, is := a[joined]
	return joined, isTool(name) && (!is || of == name)
}

// Called returns the own name of the tool that is meant by the rest that [Cut] returned; false if it would be
// ambiguous.
func (a Aliases) Called(server, rest string) (string, bool) {
	if of, is := a[Name(server, rest)]; is {
		return of, of != ""
	}
	return rest, true
}

// isTool reports whether a tool with that name can be called: the grammar of names allows more characters than model
// APIs do, but not all.
func isTool(name string) bool {
	return 0 < len(name) && len(name) <= 128 && !strings.ContainsFunc(name, func(r rune) bool { return !isPlainRune(r) && r != '.' && r != '/' })
}

func isPlain(name string) bool {
	return len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool { return !isPlainRune(r) })
}

func isPlainRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(nameRunes, r)
}

// URI returns the combined URI of a server's resource, or of a URI template.
func URI(server, uri string) string { return scheme + server + "+" + uri }

// CutURI returns the server of a combined URI, and the server's own URI; false if the URI contains no server.
func CutURI(uri string) (server, rest string, ok bool) {
	behind, is := strings.CutPrefix(uri, scheme)
	server, rest, ok = strings.Cut(behind, "+")
	return server, rest, is && ok && server != "" && rest != ""
}

// ID returns the combined id of a server's own request, or of its progress token, as raw JSON. It contains the server's
// raw JSON, so that a string and a number stay different.
func ID(server string, raw []byte) []byte { return quoted(server + ":" + string(raw)) }

// CutID returns the server of a combined id, and the server's own raw id; false if raw is not a combined id.
func CutID(raw []byte) (server string, id []byte, ok bool) {
	text, err := jsontext.AppendUnquote(nil, raw)
	if err != nil {
		return "", nil, false
	}
	server, rest, ok := strings.Cut(string(text), ":")
	if !ok || server == "" || !jsontext.Value(rest).IsValid() {
		return "", nil, false
	}
	return server, []byte(rest), true
}
