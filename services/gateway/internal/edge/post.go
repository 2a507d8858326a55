package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/inflight"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// Header names in the form in which net/http keeps them.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
)

// codeSession is the code of every request whose session is not known.
const codeSession = commonv1.Code_CODE_SESSION_UNKNOWN

// exchange is one message of an identified caller and the way back to it.
type exchange struct {
	*Edge
	caller

	w http.ResponseWriter
	r *http.Request
	// server is where it goes, by its configured name, and target what is known of that; empty for
	// all servers together.
	server   string
	target   Target
	msg      *gate.Message
	received time.Time
	sess     *session.Session
	// failure is the type of the error that the client is told; empty for none.
	failure string
	// held is for how long a call was held open for people, and its server waited for the client.
	held time.Duration
	// has is what the message and its answer take.
	has *inflight.Place
	// patience is the server's clock where it may ask the client; else nil.
	patience *upstream.Patience
	// hub is the session with many servers within which this is for one of them; nil elsewhere.
	hub *session.Session
	// modern is what a request without sessions has besides; nil for all others.
	*modern
}

// post takes one message.
func (e *Edge) post(w http.ResponseWriter, r *http.Request, c caller) {
	x := &exchange{Edge: e, caller: c, w: w, r: r, server: r.PathValue("server")}
	var err error
	if x.has, err = e.inFlight.Enter(c.principal, x.server); err != nil {
		e.reject(w, r, c, *tooMuchInFlight(err))
		return
	}
	defer x.has.Leave()
	if refused := x.read(); refused != nil {
		e.reject(w, x.r, c, *refused)
		return
	}
	parent, _ := single(r.Header, "Traceparent")
	ctx, span := spans.Serve(r.Context(), e.deps.Tracer, x.msg, spans.Client(x.msg, parent, e.deps.Propagator), e.cfg.TrustParent)
	defer span.End()
	defer x.measure(ctx)
	spans.Message(span, x.msg, x.place())
	x.r = r.WithContext(ctx)
	if refused := x.check(); refused != nil {
		x.rejectVersion(ctx, refused)
		return
	}
	if x.isModern() {
		x.modern = new(modern)
		x.postModern(ctx)
		return
	}
	if x.msg.Kind == gate.Request && x.msg.Method == mcp.MethodInitialize {
		switch {
		case !x.admitted(ctx, mcp.MethodInitialize):
		case x.isHub():
			x.openHub(ctx)
		default:
			x.open(ctx)
		}
		return
	}
	done, refused := x.findSession()
	if refused != nil {
		x.rejectMessage(*refused)
		return
	}
	defer done()
	if x.isHub() {
		x.routeHub(ctx)
		return
	}
	x.route(ctx)
}

// read reads the body and puts it through the gate.
func (x *exchange) read() *rejection {
	if !x.isHub() {
		if x.isAbsent(x.r.Context(), x.caller, x.server) {
			unknown := unknownServer(x.server)
			return &unknown
		}
		x.target = x.targets[x.server]
		x.target.used.Store(time.Now().UnixNano())
	}
	if !isJSON(x.r.Header) {
		return &rejection{status: http.StatusUnsupportedMediaType, code: commonv1.Code_CODE_MEDIA_TYPE, rpc: mcp.CodeInvalidRequest}
	}
	body, err := x.pieces.ReadAll(x.has.Reader(x.r.Body), x.r.ContentLength, x.limits.Bytes)
	x.received = time.Now()
	switch {
	case errors.Is(err, inflight.ErrFull):
		return tooMuchInFlight(err)
	case err != nil:
		return unreadable()
	}
	end, err := x.has.Answer.TurnFor(x.r.Context(), len(body))
	if err != nil {
		return unreadable() // nobody waits for it any more
	}
	defer end()
	limits := x.limits
	if x.isHub() {
		limits.IDBytes *= 2 // of servers' ids with their servers' names
	}
	if x.msg, err = gate.Parse(body, limits); err != nil {
		return unparsed(err, len(body))
	}
	return nil
}

// isJSON reports whether a body is said to be JSON in UTF-8, as it stands.
func isJSON(h http.Header) bool {
	text, ok := single(h, "Content-Type")
	encoding := h["Content-Encoding"]
	encoded := len(encoding) > 1 || len(encoding) == 1 && encoding[0] != ""
	if text == "application/json" { // as nearly all say it
		return !encoded
	}
	kind, params, err := mime.ParseMediaType(text)
	charset, named := params["charset"]
	return ok && !encoded && err == nil && kind == "application/json" && (!named || strings.EqualFold(charset, "utf-8"))
}

// check rejects a message that two readers could take for two, one of a revision that the
// gateway does not speak, and one that needs no rule and is large all the same. The revision
// that initialize names in its head is not looked at: what counts is agreed on in its body.
func (x *exchange) check() *rejection {
	for name, lines := range x.r.Header {
		if len(lines) > 1 && strings.HasPrefix(name, "Mcp-") { // one reader could take the first, and another the last
			twice := x.rejection(http.StatusBadRequest, commonv1.Code_CODE_HEADER_MISMATCH)
			twice.message = "send each Mcp- header once."
			return twice
		}
	}
	header, _ := single(x.r.Header, headerVersion)
	meta := x.msg.Meta.ProtocolVersion
	if meta != "" && header != "" && meta != header && (meta == mcp.Modern || header == mcp.Modern) {
		differ := x.rejection(http.StatusBadRequest, commonv1.Code_CODE_HEADER_MISMATCH)
		differ.rpc, differ.message = mcp.CodeHeaderMismatch, headerVersion+" does not say what params._meta does."
		return differ
	}
	if mcp.IsModern(x.msg.Method) && meta != "" && meta != mcp.Modern {
		return x.notSpoken(meta)
	}
	for _, version := range []string{meta, header} {
		agrees := x.msg.Method == mcp.MethodInitialize && mcp.IsRevision(version)
		if version != "" && version != mcp.Modern && !mcp.IsSupported(version) && !agrees {
			return x.notSpoken(version)
		}
	}
	if x.passes() && x.msg.Kind != gate.Response { // whether an answer was asked for its session knows
		return x.tooLarge()
	}
	return nil
}

// tooLarge rejects a message that needs no rule and is large all the same.
func (x *exchange) tooLarge() *rejection {
	if len(x.msg.Raw) <= maxPassing {
		return nil
	}
	large := x.rejection(http.StatusBadRequest, commonv1.Code_CODE_BODY_TOO_LARGE)
	large.message = fmt.Sprintf("a message of this kind may have %d bytes.", maxPassing)
	return large
}

// tooMuchInFlight rejects what a principal has no room for.
func tooMuchInFlight(err error) *rejection {
	out := &rejection{
		status: http.StatusTooManyRequests, code: commonv1.Code_CODE_ABUSE_LIMITED, rpc: mcp.CodeInvalidRequest,
		message: "this caller has too many or too large requests in flight; wait for some of them.",
	}
	if full := quota.Why(err); full != "" {
		out.message = full + "; wait for some of them."
	}
	return out
}

func unreadable() *rejection {
	return &rejection{status: http.StatusBadRequest, code: commonv1.Code_CODE_JSON_INVALID, rpc: mcp.CodeParse, message: "the body could not be read."}
}

// unparsed says why the gate refused. Where the bytes are no JSON the error is a
// parse error, else an invalid request (JSON-RPC 2.0, section 5.1).
func unparsed(err error, size int) *rejection {
	refused := &rejection{status: http.StatusBadRequest, code: commonv1.Code_CODE_JSON_INVALID, rpc: mcp.CodeInvalidRequest, size: size}
	if own, ok := errors.AsType[*gate.Error](err); ok {
		refused.code = own.Code
		refused.message = fmt.Sprintf("%s (at byte %d).", own.Detail, own.Offset)
	}
	switch refused.code { //nolint:exhaustive // everything else is well-formed JSON that is no valid request
	case commonv1.Code_CODE_JSON_INVALID, commonv1.Code_CODE_JSON_ENCODING, commonv1.Code_CODE_JSON_TRAILING:
		refused.rpc = mcp.CodeParse
	}
	return refused
}

// findSession finds the session that the request names. A handle is not a
// credential: it counts together with the principal and the server alone.
func (x *exchange) findSession() (func(), *rejection) {
	id, ok := single(x.r.Header, headerSession)
	if !ok {
		refused := x.rejection(http.StatusBadRequest, codeSession)
		refused.message = "send the Mcp-Session-Id that initialize gave, once."
		return nil, refused
	}
	sess, done, err := x.deps.Sessions.Use(id, x.key(x.server))
	if err != nil {
		return nil, x.rejection(http.StatusNotFound, codeSession)
	}
	x.in(sess)
	spans.Session(trace.SpanFromContext(x.r.Context()), x.place())
	return done, nil
}

// in puts the message at hand into its session.
func (x *exchange) in(sess *session.Session) {
	if x.sess = sess; len(sess.Client.Offer.Abilities) > 0 {
		x.patience = new(upstream.Patience)
	}
}

// rejection refuses the message at hand.
func (x *exchange) rejection(status int, code commonv1.Code) *rejection {
	return &rejection{status: status, code: code, rpc: mcp.CodeInvalidRequest, id: x.id(), size: len(x.msg.Raw), method: x.msg.Method, name: gate.Recorded(x.msg)}
}

// id is the raw id of the request at hand; nil where it has none.
func (x *exchange) id() []byte { return x.msg.ID.Of(x.msg.Raw) }

// acting is the principal in this session and run.
func (x *exchange) acting() *identityv1.Principal {
	p := proto.CloneOf(x.principal)
	p.Session, p.Run = x.place().Session, x.msg.Meta.Run
	return p
}

// route carries the message to where its method belongs.
func (x *exchange) route(ctx context.Context) {
	if x.passes() && !x.admitted(ctx, cmp.Or(x.msg.Method, methodAnswer)) {
		return
	}
	if x.msg.Kind == gate.Request && x.msg.Method != mcp.MethodPing {
		if err := x.has.Admit(ctx); err != nil {
			x.refuse(ctx, x.newWriter(), notAdmitted(err))
			return
		}
	}
	switch {
	case x.msg.Kind == gate.Response:
		x.answered(ctx)
	case x.msg.Kind == gate.Notification:
		x.notify(ctx)
	case x.msg.InputResponses.Present():
		x.refuse(ctx, x.newWriter(), &refusal.Refusal{Code: commonv1.Code_CODE_METHOD_DENIED, Message: "what servers ask in a session is answered by itself."})
	case x.msg.Method == mcp.MethodPing:
		x.pong(ctx)
	default:
		x.carry(ctx)
	}
}

// carry carries out a request that the revisions have in common.
func (x *exchange) carry(ctx context.Context) {
	switch {
	case x.msg.Method == mcp.MethodToolsList:
		x.list(ctx)
	case mcp.AsksClient(x.msg.Method):
		x.refuse(ctx, x.newWriter(), &refusal.Refusal{Code: commonv1.Code_CODE_METHOD_DENIED, Message: "servers ask this of clients."})
	case x.msg.Method == mcp.MethodToolsCall && x.msg.Name == mcp.ToolApprovalWait:
		x.awaitApproval(ctx)
	default:
		x.call(ctx)
	}
}

// single returns a header that must stand there once at most: two lines of it
// could be read differently by two readers.
func single(h http.Header, name string) (string, bool) {
	if lines := h[name]; len(lines) == 1 {
		return lines[0], lines[0] != ""
	}
	return "", false
}
