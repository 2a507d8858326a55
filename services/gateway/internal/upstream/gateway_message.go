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

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// A GatewayMessage is a message that the gateway has written itself. Such messages need no policy decision. Only the
// functions in this file create them. They contain data from a client only if the function's comment says so. The zero
// value contains no message and is never sent.
type GatewayMessage struct {
	message *jsonrpc.Message
	person  principal.Key
}

// OnBehalfOf returns the message as a message on behalf of a person. Only messages that open a session may have a
// person (see [Request.Person]).
func (o GatewayMessage) OnBehalfOf(person principal.Key) GatewayMessage {
	o.person = person
	return o
}

// Request returns the message as a request. traceParent is a W3C traceparent. It may be empty. memory is the budget for
// the answer (see [Request.Room]).
func (o GatewayMessage) Request(traceParent string, memory *limits.Memory) Request {
	if o.message == nil {
		o.message = new(jsonrpc.Message)
	}
	return Request{Message: o.message, TraceParent: traceParent, Room: memory, Person: o.person}
}

// inTrace returns the message as a request that belongs to the trace of ctx.
func (o GatewayMessage) inTrace(ctx context.Context, memory *limits.Memory) Request {
	return o.Request(telemetry.TraceParent(trace.SpanContextFromContext(ctx)), memory)
}

const (
	// maxClientName and maxClientVersion are the maximum lengths, in bytes, of the client's name and version in a message
	// to a server.
	maxClientName    = 64
	maxClientVersion = 32
	// clientText contains the characters, other than letters and digits, that are allowed in the client's name and
	// version.
	clientText = " ._-/@+()"
)

// Initialize returns the request that opens a session. If the gateway does not support the given version, the request
// contains the newest supported revision that uses sessions. The request contains the client's name, truncated to 64
// bytes, and its version, truncated to 32 bytes. Characters other than ASCII letters, digits and ` ._-/@+()` are
// removed from both. The request declares exactly the capabilities in claims.
func Initialize(version, client, clientVersion string, claims ...mcp.Ability) GatewayMessage {
	if !mcp.IsSupported(version) {
		version = mcp.Supported()[0]
	}
	return initialize(version, client, clientVersion, mcp.CapabilitiesJSON(claims))
}

// initialize is like [Initialize], but claims is a raw JSON object that the gateway has written.
func initialize(version, client, clientVersion, claims string) GatewayMessage {
	return gatewayRequest(mcp.MethodInitialize, `{"protocolVersion":"`+version+`","capabilities":`+claims+`,"clientInfo":`+clientInfo(client, clientVersion)+`}`)
}

// A Client contains the capabilities, the name and the version of a client. Requests without a session contain these
// values (MCP 2026-07-28). The name and the version are limited as in [Initialize]. A nil Client adds no members to a
// request.
type Client struct {
	Name, Version string
	Claims        []mcp.Ability
	// rawCapabilities is the client's raw capabilities object, which the gateway has written. If it is nil, Claims is
	// used.
	rawCapabilities []byte
}

// meta returns the `_meta` member of a request, followed by a comma. It returns "" for a nil client, because a request
// in a session needs no such member.
func (c *Client) meta() string {
	if c == nil {
		return ""
	}
	return `"_meta":{` + string(c.members()) + `},`
}

// members returns the `_meta` members that describe the client.
func (c *Client) members() []byte {
	claims := mcp.CapabilitiesJSON(c.Claims)
	if c.rawCapabilities != nil {
		claims = string(c.rawCapabilities)
	}
	return []byte(`"` + mcp.MetaVersion + `":"` + mcp.Modern + `","` + mcp.MetaCapabilities + `":` + claims + `,"` + mcp.MetaClientInfo + `":` + clientInfo(c.Name, c.Version))
}

func clientInfo(client, version string) string {
	return `{"name":"` + cleanClientText(client, maxClientName) + `","version":"` + cleanClientText(version, maxClientVersion) + `"}`
}

// Discover returns the request that asks a server for its revisions and capabilities.
func Discover(client *Client) GatewayMessage {
	return gatewayRequest(mcp.MethodDiscover, `{`+strings.TrimSuffix(client.meta(), ",")+`}`)
}

// Wanted says which notifications a stream must contain.
type Wanted struct {
	Tools, Prompts, Resources bool
	// URIs are the resources for which the client receives updates.
	URIs []string
}

// Subscribe returns the request for a stream that contains the wanted notifications. id is the raw id of the client's
// request. The request to the server has the same id, because the messages on the stream contain this id.
func Subscribe(id []byte, client *Client, wanted Wanted) GatewayMessage {
	uris, err := json.Marshal(wanted.URIs)
	if err != nil { // the URIs were read from JSON, so this cannot fail
		uris = []byte("[]")
	}
	return newGatewayMessage(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"%s","params":{%s"notifications":{"toolsListChanged":%t,"promptsListChanged":%t,"resourcesListChanged":%t,"resourceSubscriptions":%s}}}`,
		id, mcp.MethodListen, client.meta(), wanted.Tools, wanted.Prompts, wanted.Resources, uris))
}

// ListTools returns the request for one page of the tools list. cursor is a cursor that the server has issued, or empty
// for the first page. In a session, client must be nil, because initialize has already described the client.
func ListTools(cursor string, client *Client) GatewayMessage {
	if cursor == "" {
		return gatewayRequest(mcp.MethodToolsList, `{`+strings.TrimSuffix(client.meta(), ",")+`}`)
	}
	quoted, err := jsontext.AppendQuote(nil, cursor)
	if err != nil { // the cursor was read from JSON, so this cannot fail
		quoted = []byte(`""`)
	}
	return gatewayRequest(mcp.MethodToolsList, `{`+client.meta()+`"cursor":`+string(quoted)+`}`)
}

// Initialized returns the notification that completes the opening of a session.
func Initialized() GatewayMessage { return notification(mcp.MethodInitialized, "") }

// RootsChanged returns the notification that the client's roots have changed.
func RootsChanged() GatewayMessage { return notification(mcp.MethodRootsChanged, "") }

// Cancelled returns the notification that the request with the given raw id is cancelled.
func Cancelled(id []byte) GatewayMessage {
	return notification(mcp.MethodCancelled, `,"params":{"requestId":`+string(id)+`}`)
}

// Pong returns the response to a server's ping. id is the raw id of the ping.
func Pong(id []byte) GatewayMessage {
	return newGatewayMessage(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":{}}`)
}

// Refused returns the error response to a server's request. id is the raw id of the request. The text must come from
// the gateway itself.
func Refused(id []byte, code int, text string) GatewayMessage {
	quoted, err := jsontext.AppendQuote(nil, text)
	if err != nil { // the gateway has written the text, so this cannot fail
		quoted = []byte(`""`)
	}
	return newGatewayMessage(`{"jsonrpc":"2.0","id":` + string(id) + `,"error":{"code":` + strconv.Itoa(code) + `,"message":` + string(quoted) + `}}`)
}

// gatewayRequest returns a request with an unguessable id. The id therefore differs from all ids that the client uses
// in the same session.
func gatewayRequest(method, params string) GatewayMessage {
	return newGatewayMessage(`{"jsonrpc":"2.0","id":` + string(newRequestID()) + `,"method":"` + method + `","params":` + params + `}`)
}

// newRequestID returns an unguessable id as raw JSON.
func newRequestID() []byte { return []byte(strconv.Quote("sluice-" + rand.Text())) }

func notification(method, rest string) GatewayMessage {
	return newGatewayMessage(`{"jsonrpc":"2.0","method":"` + method + `"` + rest + `}`)
}

// newGatewayMessage returns a message that the gateway has written. Parsing can't fail: the gateway writes the JSON
// itself, and the values that it inserts are quoted or come from messages that were already parsed. If parsing fails
// nevertheless, the message is never sent.
func newGatewayMessage(text string) GatewayMessage {
	parse := jsonrpc.AnswerLimits() // a server may have chosen a long cursor
	parse.IDBytes = 1 << 10
	m, err := jsonrpc.Parse([]byte(text), parse)
	if err != nil {
		m = new(jsonrpc.Message)
	}
	return GatewayMessage{message: m}
}

// cleanClientText returns the allowed characters of text, truncated to maxBytes. If text contains no allowed character,
// cleanClientText returns "unknown".
func cleanClientText(text string, maxBytes int) string {
	allowed := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune(clientText, r):
			return r
		default:
			return -1
		}
	}, text)
	allowed = strings.TrimSpace(allowed[:min(len(allowed), maxBytes)])
	if allowed == "" {
		return "unknown"
	}
	return allowed
}
