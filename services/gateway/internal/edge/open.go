package edge

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// maxInitialize is the largest initialize, in bytes. A session keeps it, to open
// another with the server where that has forgotten its own.
const maxInitialize = 64 << 10

// open opens a session: one of the gateway's for the client, and one with the
// server behind it.
func (x *exchange) open(ctx context.Context) {
	out := x.newWriter()
	if x.stale {
		x.turnDown(ctx, out, policyAway())
		return
	}
	if refused := x.has.admit(ctx); refused != nil {
		x.turnDown(ctx, out, refused)
		return
	}
	done, err := x.deps.Sessions.Opening(x.key(x.server))
	if err != nil {
		x.turnDown(ctx, out, notOpened(err))
		return
	}
	defer done()
	conn, opened, err := x.handshake(ctx)
	if err != nil {
		x.deps.Log.WarnContext(ctx, "server did not open a session", "server", x.server, "why", upstream.Why(opened, err))
		x.deps.Log.DebugContext(ctx, "server did not open a session", "server", x.server, "error", err) // it may quote what a server wrote
		x.turnDown(ctx, out, unanswered(err))
		return
	}
	answer := opened.Message
	if answer.Error.Present() {
		x.abandon(conn)
		x.failure = spans.Answer(trace.SpanFromContext(ctx), answer)
		out.answer(ctx, answer)
		return
	}
	body, err := greeting(answer)
	var sess *session.Session
	if err == nil {
		sess, err = x.newSession(conn, answer)
	}
	if err != nil {
		x.abandon(conn)
		x.turnDown(ctx, out, notOpened(err))
		return
	}
	x.w.Header().Set(headerSession, sess.ID)
	out.message(body)
}

// greeting is the server's answer to initialize as its client gets it.
func greeting(answer *gate.Answer) ([]byte, error) {
	edits := answer.Clean(nil)
	if at := answer.Capabilities; at.Present() {
		// What is cut out of them goes with the whole.
		edits = slices.DeleteFunc(edits, func(e gate.Edit) bool { return e.Span.Start >= at.Start && e.Span.End <= at.End })
		edits = append(edits, gate.Edit{Span: at, With: serverCapabilities(answer)})
	}
	return gate.Splice(answer.Raw, edits...)
}

// errVersion means that client and server agreed on a revision that the gateway
// does not speak.
var errVersion = errors.New("the server speaks a protocol version that is not supported here")

// notOpened is the refusal of a session that the gateway did not open.
func notOpened(err error) *refusal.Refusal {
	switch {
	case errors.Is(err, session.ErrTooMany):
		return &refusal.Refusal{Code: commonv1.Code_CODE_TOO_MANY_SESSIONS}
	case errors.Is(err, errVersion):
		return &refusal.Refusal{Code: commonv1.Code_CODE_PROTOCOL_VERSION, Message: errVersion.Error() + "."}
	default:
		return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	}
}

// handshake sends the client's initialize on. What the gateway can't carry, the
// server must not think it has: requests of its own to the client need streams
// that are not offered.
func (x *exchange) handshake(ctx context.Context) (upstream.Conn, upstream.Answer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), x.target.Timeout)
	defer cancel()
	edits := x.msg.Forward(gate.Trace{})
	if x.msg.Capabilities.Present() {
		edits = append(edits, gate.Edit{Span: x.msg.Capabilities, With: []byte("{}")})
	}
	if !mcp.IsSupported(x.msg.Version) && x.msg.VersionValue.Present() {
		edits = append(edits, gate.Edit{Span: x.msg.VersionValue, With: []byte(`"` + mcp.Supported()[0] + `"`)})
	}
	body, err := gate.Splice(x.msg.Raw, edits...)
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	judged, err := gate.Parse(body, x.limits)
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	req, err := pipeline.Prepare(judged, trace.SpanContextFromContext(ctx))
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	req.Room = x.has.answer
	who := upstream.Principal{Tenant: x.principal.GetTenant(), Subject: x.principal.GetSubject()}
	return x.target.Server.Open(ctx, who, req)
}

func (x *exchange) newSession(conn upstream.Conn, answer *gate.Answer) (*session.Session, error) {
	version := unquote(answer.ProtocolVersion.Of(answer.Raw))
	if !mcp.IsSupported(version) {
		return nil, errVersion
	}
	client := session.Client{Elicits: elicits(x.msg, version)}
	client.Name, client.Version = x.msg.Client()
	id, digest := session.NewID()
	sess := &session.Session{
		ID: id, Digest: digest, Key: x.key(x.server), Agent: x.principal.GetAgent(),
		Version: version, Client: client, Conn: conn, Opened: time.Now(),
	}
	return sess, x.deps.Sessions.Add(sess)
}

// abandon ends a session with a server that no client will use.
func (x *exchange) abandon(conn upstream.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	if err := conn.Close(ctx); err != nil {
		x.deps.Log.DebugContext(ctx, "server did not end the session", "server", x.server, "error", err)
	}
}

// serverCapabilities is what the gateway offers of what the server has: tools,
// and nothing that would need a method which is refused or a stream to the
// client.
func serverCapabilities(answer *gate.Answer) []byte {
	raw := jsontext.Value(answer.Capabilities.Of(answer.Raw))
	dec := jsontext.NewDecoder(bytes.NewReader(raw))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return []byte("{}")
	}
	for dec.PeekKind() == '"' {
		key, err := dec.ReadToken()
		if err != nil {
			break
		}
		if key.String() == "tools" {
			return []byte(`{"tools":{}}`)
		}
		if err := dec.SkipValue(); err != nil {
			break
		}
	}
	return []byte("{}")
}

// unquote reads a JSON string; anything else is empty.
func unquote(raw []byte) string {
	out, err := jsontext.AppendUnquote(nil, raw)
	if err != nil {
		return ""
	}
	return string(out)
}
