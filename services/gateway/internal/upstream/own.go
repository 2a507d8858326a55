package upstream

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// An Own is a message of the gateway's own: what passes without a rule it writes itself,
// of known fields, and a server gets nothing of a client's but what a function below
// names. Nothing else makes one. The zero value is no message, and is never sent.
type Own struct{ message *gate.Message }

// Request is the message as it is sent, with a W3C traceparent, which may be empty, and
// room for its answer, as in [Request].
func (o Own) Request(traceParent string, has *room.Holding) Request {
	if o.message == nil {
		o.message = new(gate.Message)
	}
	return Request{Message: o.message, TraceParent: traceParent, Room: has}
}

// in is the message as it is sent in the trace of ctx.
func (o Own) in(ctx context.Context, has *room.Holding) Request {
	return o.Request(telemetry.TraceParent(trace.SpanContextFromContext(ctx)), has)
}

const (
	// maxClientName and maxClientVersion are how much of what a client calls itself
	// goes to a server, in bytes.
	maxClientName    = 64
	maxClientVersion = 32
	// clientText are the characters beside letters and digits that it may have.
	clientText = " ._-/@+()"
)

// Initialize is the request that opens a session: in a revision that the gateway
// speaks, the newest where version is none, and for a client that calls itself so.
// Of that only ASCII letters, digits and ` ._-/@+()` go, at most 64 and 32 bytes. It
// claims these abilities, and none other.
func Initialize(version, client, clientVersion string, claims ...mcp.Ability) Own {
	if !mcp.IsSupported(version) {
		version = mcp.Supported()[0]
	}
	return initialize(version, client, clientVersion, mcp.Told(claims))
}

// initialize is [Initialize] with claims as a raw object that the gateway has written.
func initialize(version, client, clientVersion, claims string) Own {
	return ask(mcp.MethodInitialize, `{"protocolVersion":"`+version+`","capabilities":`+claims+`,"clientInfo":`+info(client, clientVersion)+`}`)
}

// A Client is who asks without a session, where the request says so (MCP 2026-07-28): it has the
// abilities, and calls itself so, of which goes what does of [Initialize]. Nil says nothing.
type Client struct {
	Name, Version string
	Claims        []mcp.Ability
	// said is what it claims, as a raw object that the gateway has written; nil for Claims.
	said []byte
}

// meta is `_meta` of a request, and the comma behind it; nothing where no session is done without.
func (c *Client) meta() string {
	if c == nil {
		return ""
	}
	return `"_meta":{` + string(c.members()) + `},`
}

// members are those of `_meta` that say who asks.
func (c *Client) members() []byte {
	claims := mcp.Told(c.Claims)
	if c.said != nil {
		claims = string(c.said)
	}
	return []byte(`"` + mcp.MetaVersion + `":"` + mcp.Modern + `","` + mcp.MetaCapabilities + `":` + claims + `,"` + mcp.MetaClientInfo + `":` + info(c.Name, c.Version))
}

// info is what a client calls itself, as an object.
func info(client, version string) string {
	return `{"name":"` + plain(client, maxClientName) + `","version":"` + plain(version, maxClientVersion) + `"}`
}

// Discover is the request for what a server speaks and has.
func Discover(of *Client) Own {
	return ask(mcp.MethodDiscover, `{`+strings.TrimSuffix(of.meta(), ",")+`}`)
}

// Wanted is what is to come on a stream.
type Wanted struct {
	Tools, Prompts, Resources bool
	// URIs are those of resources of whose changes the client wants to hear.
	URIs []string
}

// Subscribe is the request for a stream with what is wanted. It has the client's own id, by
// which what comes is named, as raw JSON.
func Subscribe(id []byte, of *Client, wants Wanted) Own {
	uris, err := json.Marshal(wants.URIs)
	if err != nil { // they were read out of JSON, so this can't be
		uris = []byte("[]")
	}
	return written(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"%s","params":{%s"notifications":{"toolsListChanged":%t,"promptsListChanged":%t,"resourcesListChanged":%t,"resourceSubscriptions":%s}}}`,
		id, mcp.MethodListen, of.meta(), wants.Tools, wants.Prompts, wants.Resources, uris))
}

// ListTools is the request for a page of the list of tools: the first where cursor is
// empty, else the one that the server gave this cursor for. Where there is no session it is of a
// client, else of nil.
func ListTools(cursor string, of *Client) Own {
	if cursor == "" {
		return ask(mcp.MethodToolsList, `{`+strings.TrimSuffix(of.meta(), ",")+`}`)
	}
	quoted, err := jsontext.AppendQuote(nil, cursor)
	if err != nil { // it was read out of JSON, so this can't be
		quoted = []byte(`""`)
	}
	return ask(mcp.MethodToolsList, `{`+of.meta()+`"cursor":`+string(quoted)+`}`)
}

// Initialized is the notification that a session is in use.
func Initialized() Own { return tell(mcp.MethodInitialized, "") }

// RootsChanged is the notification that a client's roots have changed.
func RootsChanged() Own { return tell(mcp.MethodRootsChanged, "") }

// Cancelled is the notification that a request which was sent is given up. The id is
// that request's, as raw JSON.
func Cancelled(id []byte) Own {
	return tell(mcp.MethodCancelled, `,"params":{"requestId":`+string(id)+`}`)
}

// Pong answers a server's ping, whose raw id this is.
func Pong(id []byte) Own { return written(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":{}}`) }

// Refused answers a request of a server's own that no client answers, with the raw id of the
// request, a code of JSON-RPC and a text, which is ours.
func Refused(id []byte, code int, text string) Own {
	quoted, err := jsontext.AppendQuote(nil, text)
	if err != nil { // it is ours, so this can't be
		quoted = []byte(`""`)
	}
	return written(`{"jsonrpc":"2.0","id":` + string(id) + `,"error":{"code":` + strconv.Itoa(code) + `,"message":` + string(quoted) + `}}`)
}

// ask makes a request with an id that nobody can guess: it must not be one of the
// client's own in the same session.
func ask(method, params string) Own {
	return written(`{"jsonrpc":"2.0","id":` + string(ownID()) + `,"method":"` + method + `","params":` + params + `}`)
}

// ownID is an id of the gateway's own that nobody can guess, as raw JSON.
func ownID() []byte { return []byte(strconv.Quote("sluice-" + rand.Text())) }

func tell(method, rest string) Own {
	return written(`{"jsonrpc":"2.0","method":"` + method + `"` + rest + `}`)
}

// written is a message of the gateway's own. What it holds of others was read out of
// messages that were let in, so this can't fail; what would is never sent.
func written(text string) Own {
	limits := gate.AnswerLimits() // a cursor is as long as a server makes it
	limits.IDBytes = 1 << 10
	m, err := gate.Parse([]byte(text), limits)
	if err != nil {
		m = new(gate.Message)
	}
	return Own{m}
}

// plain returns what may go of a text of a client's; "unknown" where that is nothing.
func plain(text string, most int) string {
	kept := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune(clientText, r):
			return r
		default:
			return -1
		}
	}, text)
	kept = strings.TrimSpace(kept[:min(len(kept), most)])
	if kept == "" {
		return "unknown"
	}
	return kept
}
