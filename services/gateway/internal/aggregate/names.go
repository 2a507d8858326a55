package aggregate

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// separator stands between the name of a server and the name that the server uses. A server's name contains no
	// underscore, so a combined name is always split at the first separator.
	separator = "__"
	// uriPrefix is the beginning of a combined URI, which has the form `mcp.<server>+<uri>`. The part before the
	// server's own URI begins with a letter and contains only characters that RFC 3986, section 3.1, allows in a
	// scheme. A combined URI is therefore a valid URI with another scheme.
	uriPrefix = "mcp."
	// maxToolName limits the length of a tool's combined name, in bytes. Model APIs accept 64 characters, but MCP hosts
	// add a prefix with their own name for the connection (`mcp__sluice__…`). nameRunes contains the characters that
	// are allowed in addition to letters and digits.
	maxToolName = 48
	nameRunes   = "_-"
	// aliasDigits is the number of hexadecimal digits that distinguish the aliases of a server's tools.
	aliasDigits = 8
)

// CombinedName returns the combined name of a server's prompt or tool.
func CombinedName(server, name string) string { return server + separator + name }

// SplitName splits a combined name into the server and the name that the server uses. It returns false if either part
// is missing.
func SplitName(name string) (server, rest string, ok bool) {
	server, rest, ok = strings.Cut(name, separator)
	return server, rest, ok && server != "" && rest != ""
}

// CombinedTool returns the combined name of a server's tool. If model APIs would not accept that name, CombinedTool
// returns an alias. The alias of a tool never changes, because it depends only on the server's name and the tool's
// name.
func CombinedTool(server, name string) string {
	if joined := CombinedName(server, name); isPlainName(joined) {
		return joined
	}
	sum := sha256.Sum256([]byte(name))
	tail := "_" + hex.EncodeToString(sum[:aliasDigits/2])
	plain := strings.Map(func(r rune) rune {
		if isPlainRune(r) {
			return r
		}
		return '_'
	}, name)
	head := CombinedName(server, plain)
	return head[:min(len(head), maxToolName-len(tail))] + tail
}

// ToolAliases maps the aliases of a server's tools to the names that the server uses. If an alias is ambiguous, because
// it is also the alias or the combined name of another tool, it is mapped to "".
type ToolAliases map[string]string

// NewToolAliases returns the aliases for a server that lists tools with the given names.
func NewToolAliases(server string, tools []string) ToolAliases {
	out, listed := make(ToolAliases), make(map[string]bool, len(tools))
	for _, name := range tools {
		listed[CombinedName(server, name)] = true
	}
	for _, name := range tools {
		joined := CombinedTool(server, name)
		if joined == CombinedName(server, name) || !isCallable(name) {
			continue
		}
		if of, known := out[joined]; listed[joined] || known && of != name {
			name = ""
		}
		out[joined] = name
	}
	return out
}

// DisplayName returns the combined name or alias of a server's tool. It returns false if that name is ambiguous, or if
// the tool cannot be called because its own name is invalid.
func (a ToolAliases) DisplayName(server, name string) (string, bool) {
	joined := CombinedTool(server, name)
	of, is := a[joined]
	return joined, isCallable(name) && (!is || of == name)
}

// Resolve returns the name that the server uses for a tool. The caller passes the two parts of the combined name that
// [SplitName] returned. Resolve returns false if the combined name is ambiguous.
func (a ToolAliases) Resolve(server, rest string) (string, bool) {
	if of, is := a[CombinedName(server, rest)]; is {
		return of, of != ""
	}
	return rest, true
}

// isCallable reports whether a tool with this name can be called. Some callable names contain characters that model
// APIs do not accept; these tools are called by an alias.
func isCallable(name string) bool {
	return 0 < len(name) && len(name) <= 128 && !strings.ContainsFunc(name, func(r rune) bool { return !isPlainRune(r) && r != '.' && r != '/' })
}

func isPlainName(name string) bool {
	return len(name) <= maxToolName && !strings.ContainsFunc(name, func(r rune) bool { return !isPlainRune(r) })
}

func isPlainRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(nameRunes, r)
}

// CombinedURI returns the combined URI of a server's resource or URI template.
func CombinedURI(server, uri string) string { return uriPrefix + server + "+" + uri }

// SplitURI splits a combined URI into the server and the URI that the server uses. It returns false if either part is
// missing.
func SplitURI(uri string) (server, rest string, ok bool) {
	behind, is := strings.CutPrefix(uri, uriPrefix)
	server, rest, ok = strings.Cut(behind, "+")
	return server, rest, is && ok && server != "" && rest != ""
}

// CombinedID returns, as raw JSON, the combined id for an id or a progress token that the server has sent in a request.
// The combined id contains the raw JSON of the server's id, so that the string "1" and the number 1 stay different.
func CombinedID(server string, raw []byte) []byte { return quoteJSON(server + ":" + string(raw)) }

// SplitID splits a combined id into the server and the raw id that the server has sent. It returns false if raw is not
// a combined id.
func SplitID(raw []byte) (server string, id []byte, ok bool) {
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
