package pipeline

import (
	"strings"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

// maxRecorded is how much of a name of a caller's making is recorded, in bytes.
const maxRecorded = 256

// Recorded is what records say that a request names: the name of a tool or prompt,
// cut, or a URI, cut and without what may hold a secret: its query, its fragment and
// who signs in. Policy judges the whole.
func Recorded(m *gate.Message) string {
	text := m.Name
	if m.URI != "" {
		text = publicURI(m.URI)
	}
	if len(text) <= maxRecorded {
		return text
	}
	return strings.ToValidUTF8(text[:maxRecorded], "") + "…"
}

// publicURI returns a URI without its query, its fragment and who signs in (RFC 3986,
// sections 3.2.1, 3.4 and 3.5). It reads any text, for nobody has checked that it is
// one; of data that stands in the URI itself only the scheme is left.
func publicURI(uri string) string {
	if i := strings.IndexAny(uri, "?#"); i >= 0 {
		uri = uri[:i]
	}
	if len(uri) >= len("data:") && strings.EqualFold(uri[:len("data:")], "data:") {
		return uri[:len("data:")]
	}
	scheme, rest, ok := strings.Cut(uri, "//")
	if !ok {
		return uri
	}
	host, path, slash := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(host, '@'); i >= 0 {
		host = host[i+1:]
	}
	if slash {
		path = "/" + path
	}
	return scheme + "//" + host + path
}
