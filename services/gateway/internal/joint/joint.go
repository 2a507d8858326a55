// Package joint makes one list of names of those of many servers: what it says of a tool, a prompt, a
// resource or a request tells which server's that is, and what that server calls it. It keeps nothing:
// a name is read as it was made.
package joint

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// separator stands between a server's name and what the server calls something. A server's name
	// has no underscore, so the first one is it.
	separator = "__"
	// scheme begins a URI that names its server: `mcp.<server>+<uri>`. With a letter first and no
	// other characters than those of RFC 3986, section 3.1, it makes another scheme of the URI's own.
	scheme = "mcp."
	// maxName is how long the name of a tool may be: models' interfaces take 64 characters, and hosts
	// put their own name of the connection before it (`mcp__sluice__…`). The characters beside
	// letters and digits are nameRunes.
	maxName   = 48
	nameRunes = "_-"
	// digest is how many hexadecimal digits tell the aliases of a server apart.
	digest = 8
)

// Name is what a server's prompt, or tool, is called among those of all.
func Name(server, name string) string { return server + separator + name }

// Cut is the server that a joint name tells, and what stands behind it; false where it tells none.
func Cut(name string) (server, rest string, ok bool) {
	server, rest, ok = strings.Cut(name, separator)
	return server, rest, ok && server != "" && rest != ""
}

// Tool is what a server's tool is called among those of all: its joint name or, where interfaces of
// models would not take that, an alias, which is the same for as long as the tool's own name is.
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

// Aliases are the names of a server's tools among those of all that are not plainly joined, each with
// the tool that it stands for; with none where it would stand for two, for which of them is meant
// nobody could tell.
type Aliases map[string]string

// AliasesOf returns those of a server that lists tools of these names.
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

// Shown is what a server's tool is called among those of all; false where that would stand for two, and
// for one that can't be called.
func (a Aliases) Shown(server, name string) (string, bool) {
	joined := Tool(server, name)
	of, is := a[joined]
	return joined, isTool(name) && (!is || of == name)
}

// Called is the server's tool that is meant by what [Cut] left of a joint name; false where that
// would be two.
func (a Aliases) Called(server, rest string) (string, bool) {
	if of, is := a[Name(server, rest)]; is {
		return of, of != ""
	}
	return rest, true
}

// isTool reports whether a tool of that name can be called: the grammar of names has more characters
// than interfaces of models, and no others.
func isTool(name string) bool {
	return 0 < len(name) && len(name) <= 128 && !strings.ContainsFunc(name, func(r rune) bool { return !isPlainRune(r) && r != '.' && r != '/' })
}

func isPlain(name string) bool {
	return len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool { return !isPlainRune(r) })
}

func isPlainRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(nameRunes, r)
}

// URI is what a server's resource is called among those of all. It holds for templates of URIs, too.
func URI(server, uri string) string { return scheme + server + "+" + uri }

// CutURI is the server that a joint URI tells, and the server's own URI; false where it tells none.
func CutURI(uri string) (server, rest string, ok bool) {
	behind, is := strings.CutPrefix(uri, scheme)
	server, rest, ok = strings.Cut(behind, "+")
	return server, rest, is && ok && server != "" && rest != ""
}

// ID is what a server's own request, or the token of its progress, is called towards the client, as
// raw JSON. Of a server's it takes the raw JSON as well: a string and a number are two.
func ID(server string, raw []byte) []byte { return quoted(server + ":" + string(raw)) }

// CutID is the server that a joint id tells, and the raw id that it was made of; false where it tells
// none.
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
