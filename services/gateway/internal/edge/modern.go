package edge

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mirror"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Fields of a request of 2026-07-28 (MCP 2026-07-28, Transports, Request Headers).
const (
	headerMethod = "Mcp-Method"
	headerName   = "Mcp-Name"
)

// modern is what a request of 2026-07-28 has beside the others.
type modern struct {
	// scope is what the caller could come by on the server, and can what the server is told that
	// the client can do.
	scope reach.Standing
	can   []mcp.Ability
	// bridged says that the server has nothing but sessions, and is spoken to in one.
	bridged bool
	// mirrored is what the head says of the arguments.
	mirrored []upstream.Header
	// takesTasks says that the client takes a task for an answer, and toldTasks that the server was told.
	takesTasks, toldTasks bool
	// leg is which request it is of a call that waits for people.
	leg leg
	// done lets go of what stands for a session.
	done func()
}

// isModern reports whether the message at hand is of 2026-07-28. What initialize names in its head
// does not count: that is agreed on in its body.
func (x *exchange) isModern() bool {
	head, _ := single(x.header, headerVersion)
	return x.msg.Meta.ProtocolVersion == mcp.Modern || mcp.IsModern(x.msg.Method) && x.msg.Meta.ProtocolVersion == "" ||
		head == mcp.Modern && x.msg.Method != mcp.MethodInitialize && x.msg.Meta.ProtocolVersion == ""
}

// postModern takes a message of 2026-07-28. It is judged by its body; then its head has to say
// the same.
func (x *exchange) postModern(ctx context.Context) response {
	if x.isHub() {
		return x.postModernHub(ctx)
	}
	speaks, refused := x.speaksModern(ctx)
	if refused != nil {
		return *refused
	}
	x.bridged = !speaks
	if refused := x.checkModern(); refused != nil {
		return x.refuse(ctx, refused)
	}
	if refused := x.restored(ctx); refused != nil {
		return x.refuse(ctx, refused)
	}
	if x.passes() {
		if large := x.tooLarge(); large != nil {
			return x.refuse(ctx, large)
		}
		if refused := x.admitted(ctx, x.msg.Method); refused != nil {
			return *refused
		}
	}
	if x.msg.Kind == gate.Notification { // a client that gives a request up closes its stream
		x.refuseSilently(ctx, commonv1.Code_CODE_METHOD_DENIED)
		return accepted()
	}
	if err := x.has.Admit(ctx); err != nil {
		return x.refuse(ctx, notAdmitted(err))
	}
	said, err := x.standing(ctx)
	if err != nil {
		return x.refuse(ctx, policyAway())
	}
	can := x.saysItCan()
	x.scope, x.can, x.takesTasks = said, x.tellable(x.abilitiesSaid(can), said), saysTasks(can)
	x.toldTasks = x.takesTasks && !x.bridged && slices.Contains(said.Methods, mcp.MethodTasksGet)
	if refused := x.standIn(ctx); refused != nil {
		return x.refuse(ctx, refused)
	}
	x.finally.add(x.done)
	return x.routeModern(ctx)
}

// speaksModern reports whether the server speaks 2026-07-28 itself. If that is not known it is asked,
// which counts as a question for revisions.
func (x *exchange) speaksModern(ctx context.Context) (bool, *response) {
	speaks, known := x.target.knownModern()
	if !speaks && len(x.header[headerSession]) > 0 { // a client with a session has agreed on another revision
		return false, new(x.refuse(ctx, x.notSpoken(mcp.Modern)))
	}
	if known {
		return speaks, nil
	}
	if refused := x.admitted(ctx, methodProbe); refused != nil {
		return false, refused
	}
	speaks, err := x.target.asksModern(ctx)
	if err != nil {
		return false, new(x.refuse(ctx, x.unfound(ctx, err)))
	}
	return speaks, nil
}

// knownModern reports whether the server speaks 2026-07-28 itself, where that is known.
func (t Target) knownModern() (speaks, known bool) {
	under := t.under[mcp.Modern]
	if under != nil && under.Greeted() {
		under.Renew(discovery.Fresh)
		return true, true
	}
	return false, under == nil || under.Refused() || under.Hung() && isOlder(t.found.Last())
}

// asksModern asks the server whether it speaks 2026-07-28 itself. An error means that it has not said.
func (t Target) asksModern(ctx context.Context) (speaks bool, err error) {
	under := t.under[mcp.Modern]
	under.Renew(discovery.Fresh) // which goes on for others where this caller waits no longer
	_, err = under.Found(ctx, discovery.Fresh)
	hangs := errors.Is(err, upstream.ErrTimeout) && isOlder(t.found.Last())
	switch {
	case err == nil || under.Greeted():
		return true, nil
	case errors.Is(err, upstream.ErrRevision) || hangs:
		return false, nil
	default:
		return false, err
	}
}

// isOlder reports whether a server was found to speak a revision with sessions.
func isOlder(found *discovery.Found) bool {
	return found != nil && found.Version != mcp.Modern && time.Since(found.At) <= discovery.Fresh
}

// checkModern rejects what lacks something that every request of 2026-07-28 has, and a head that
// says something else than the body.
func (x *exchange) checkModern() *refusal.Refusal {
	m := x.msg
	version, _ := single(x.header, headerVersion)
	method, _ := single(x.header, headerMethod)
	name, named := mcp.Named(m.Method, m.Name, m.URI, m.TaskID)
	said, readable := mcp.DecodeHeader(x.header.Get(headerName))
	switch {
	case m.Kind == gate.Response:
		return refusal.ProtocolError(commonv1.Code_CODE_JSONRPC_INVALID, "answers come in inputResponses of the next request.")
	case m.Kind == gate.Notification:
		return nil
	case m.Meta.ProtocolVersion == "":
		return refusal.ProtocolError(commonv1.Code_CODE_PARAMS_INVALID, "params._meta lacks "+mcp.MetaVersion+".")
	case !m.Meta.Capabilities.Present():
		return refusal.ProtocolError(commonv1.Code_CODE_PARAMS_INVALID, "params._meta lacks "+mcp.MetaCapabilities+".")
	case version != m.Meta.ProtocolVersion:
		return refusal.ProtocolError(commonv1.Code_CODE_HEADER_MISMATCH, headerVersion+" does not say what params._meta does.")
	case method != m.Method:
		return refusal.ProtocolError(commonv1.Code_CODE_HEADER_MISMATCH, headerMethod+" does not say what the body does.")
	case named && (!readable || said != name):
		return refusal.ProtocolError(commonv1.Code_CODE_HEADER_MISMATCH, headerName+" does not say what the body does.")
	case mcp.IsRemoved(m.Method):
		return refusal.ProtocolError(commonv1.Code_CODE_METHOD_DENIED, mcp.Modern+" has no such method.")
	}
	return nil
}

// mirrors rejects a call whose head says something else of its arguments than they do. Of a tool
// that the caller's list does not have nothing is said: it goes on to be refused.
func (x *exchange) mirrors(ctx context.Context, of tools) *refusal.Refusal {
	if of.hides {
		if listing, err := of.Listed(ctx); err != nil || !listing.Listed {
			return nil
		}
	}
	bindings, arguments := x.found().Mirrors(x.msg.Name), x.msg.Arguments.Of(x.msg.Raw)
	end, err := x.has.Answer.TurnFor(ctx, len(arguments))
	if err != nil {
		return unreadable() // its caller waits no longer
	}
	defer end()
	if x.mirrored, err = mirror.Fields(arguments, bindings, x.header.Get); err == nil {
		return nil
	}
	x.found().Renew(newsAfter) // the server may say other things of the tool by now
	return refusal.ProtocolError(commonv1.Code_CODE_HEADER_MISMATCH, err.Error()+".")
}

// standIns are what stands for the sessions of callers that have none. Each is found by a handle that
// is made of who and what it is for, with a secret of this gateway's: there is nothing to remember, and
// nobody's takes the place of another's. It is safe for concurrent use.
type standIns struct {
	mu     sync.Mutex // held while one is made
	secret []byte
}

func newStandIns() standIns { return standIns{secret: []byte(rand.Text())} }

// handle is that of what stands for one.
func (s *standIns) handle(of []byte) string {
	mac := hmac.New(sha256.New, s.secret)
	mac.Write(of)
	return hex.EncodeToString(mac.Sum(nil))
}

// standIn brings what stands for the session that 2026-07-28 does not have: what the gateway
// remembers of a caller on a server, as policy tells callers apart. It has no name that anybody
// could use, and opens nothing. Done lets go of it.
func (x *exchange) standIn(ctx context.Context) *refusal.Refusal {
	key, of := x.key(x.server), reach.AppendKey(nil, x.principal, x.server)
	of = append(reach.AppendPart(of, key.Tenant), 0)
	of = append(reach.AppendPart(of, key.Subject), 0)
	if x.bridged || x.isHub() { // a session has one client, and tells once what that can do
		name, version := x.msg.Client()
		of = fmt.Appendf(of, "%q %q %s", name, version, mcp.Told(x.can))
	}
	id := x.standIns.handle(of)
	x.standIns.mu.Lock()
	defer x.standIns.mu.Unlock()
	use := func() error {
		sess, done, err := x.deps.Sessions.Use(id, key)
		if err == nil {
			x.sess, x.done = sess, sync.OnceFunc(done)
			spans.Session(trace.SpanFromContext(ctx), x.place())
		}
		return err
	}
	if use() == nil {
		return nil
	}
	sess := &session.Session{ID: id, Digest: session.DigestOf(id), Key: key, Accounts: x.has.Of.Accounts, Agent: x.principal.GetAgent(), Version: mcp.Modern, Opened: time.Now()}
	sess.Client.Name, sess.Client.Version = x.msg.Client()
	if x.isHub() {
		sess.Members = &session.Members{Abilities: x.can}
	} else {
		sess.Upstream = x.target.Server.Later(x.opensModern(), nil)
	}
	err := x.deps.Sessions.Add(sess)
	if err == nil {
		err = use()
	}
	if err != nil {
		return notOpened(err)
	}
	return nil
}

// opensModern opens what requests of 2026-07-28 go to the server through.
func (x *exchange) opensModern() func(context.Context, *room.Holding) (*upstream.Session, error) {
	who, open, by := principal.Of(x.principal), x.target.Server.Open, x.by()
	if x.bridged {
		open = x.target.Server.Bridge
	}
	return func(ctx context.Context, has *room.Holding) (*upstream.Session, error) {
		up, _, err := open(ctx, who, upstream.Discover(by), has)
		return up, err
	}
}

// by is who asks for the client where there is no session; else nil.
func (x *exchange) by() *upstream.Client {
	if x.modern == nil {
		return nil
	}
	out := &upstream.Client{Claims: x.can}
	out.Name, out.Version = x.msg.Client()
	return out
}

// routeModern carries a message of 2026-07-28 to where its method belongs.
func (x *exchange) routeModern(ctx context.Context) response {
	switch {
	case x.msg.InputResponses.Present() && len(x.can) == 0:
		return x.refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_METHOD_DENIED, Message: "the server may ask nothing of this client, so there is nothing to answer."})
	case x.msg.Method == mcp.MethodDiscover:
		return x.discover(ctx)
	case x.msg.Method == mcp.MethodListen:
		return x.subscribe(ctx)
	case x.isOwnTask():
		return x.ownTask(ctx)
	default:
		return x.carry(ctx)
	}
}

// discover answers what the server speaks and has, as far as the caller may come by it. To who
// could come by nothing it is what the gateway was told.
func (x *exchange) discover(ctx context.Context) response {
	out := x.newRelay()
	defer out.asks.settle()
	answer, refused := x.discovered(ctx, out)
	if refused != nil {
		return x.refuse(ctx, refused)
	}
	edits := answer.Clean(nil)
	if at := answer.SupportedVersions; at.Present() {
		var said []string
		if err := json.Unmarshal(at.Of(answer.Raw), &said); err != nil {
			x.deps.Log.DebugContext(ctx, "server says in no readable way what it speaks", "server", x.server)
		}
		both, err := json.Marshal(slices.DeleteFunc(x.spoken(), func(version string) bool { return !slices.Contains(said, version) }))
		if err != nil { // they are texts of ours, so this can't be
			both = []byte("[]")
		}
		edits = append(edits, gate.Edit{Span: at, With: both})
	}
	if at := answer.Capabilities; at.Present() {
		edits = append(without(edits, at), gate.Edit{Span: at, With: serverCapabilities(answer, x.scope, mcp.ExtensionTasks)})
	}
	return x.edited(ctx, answer, x.addressed(answer, private(answer, edits, true)))
}

// discovered brings the server's answer to server/discover.
func (x *exchange) discovered(ctx context.Context, out *relay) (*gate.Answer, *refusal.Refusal) {
	if x.scope.Some {
		return x.ask(ctx, upstream.Discover(x.by()), out)
	}
	found, err := x.found().Found(ctx, discovery.Fresh)
	if err != nil {
		return nil, x.unfound(ctx, err)
	}
	greeting := found.Greeting
	if x.bridged {
		if greeting, err = upstream.Discovered(greeting, []byte("0")); err != nil {
			return nil, x.unfound(ctx, err)
		}
	}
	if refused := x.inputs(ctx, greeting); refused != nil {
		return nil, refused
	}
	if greeting, err = x.withoutServer(greeting); err != nil {
		return nil, x.unfound(ctx, err)
	}
	return greeting, nil
}

// without are the edits that lie outside of a span, which is replaced as a whole.
func without(edits []gate.Edit, at gate.Span) []gate.Edit {
	return slices.DeleteFunc(edits, func(e gate.Edit) bool { return e.Span.Start >= at.Start && e.Span.End <= at.End })
}

// private adds the edits by which a cache keeps an answer for its caller alone, of whom policy
// has judged it, and one that was filtered not at all (MCP 2026-07-28, Caching).
func private(answer *gate.Answer, edits []gate.Edit, filtered bool) []gate.Edit {
	ttl, scope := answer.TTL, answer.CacheScope
	switch {
	case scope.Present():
		edits = append(edits, gate.Edit{Span: scope, With: []byte(`"private"`)})
	case ttl.Present(): // else some take it for public
		edits = append(edits, gate.Edit{Span: gate.Span{Start: ttl.End, End: ttl.End}, With: []byte(`,"cacheScope":"private"`)})
	}
	if ttl.Present() && filtered {
		edits = append(edits, gate.Edit{Span: ttl, With: []byte("0")})
	}
	return edits
}

// spoken are the revisions that may be spoken here.
func (x *exchange) spoken() []string { return append([]string{mcp.Modern}, mcp.Supported()...) }

// Spoken are the revisions that a server was found to speak, the newest first; none where it has
// not been asked.
func (e *Edge) Spoken(server string) (out []string) {
	target, ok := e.targets[server]
	if !ok {
		return nil
	}
	if under := target.under[mcp.Modern]; under != nil && under.Greeted() {
		out = append(out, mcp.Modern)
	}
	if found := target.found.Last(); found != nil && !slices.Contains(out, found.Version) {
		out = append(out, found.Version)
	}
	return out
}

// statusOf is the HTTP status of an answer of 2026-07-28: that of the server's, where it says what
// the error does (MCP 2026-07-28, Transports).
func statusOf(answer *gate.Answer, status int) int {
	if answer.Error.Present() && (status == http.StatusBadRequest || status == http.StatusNotFound) {
		return status
	}
	return http.StatusOK
}

// resultType is that of results of the gateway's own; empty where the revision has none.
func (x *exchange) resultType() string {
	if x.modern == nil {
		return ""
	}
	return mcp.ResultComplete
}

// clientName is what the client calls itself; a claim.
func (x *exchange) clientName() string {
	if x.modern != nil {
		name, _ := x.msg.Client()
		return name
	}
	return x.sess.Client.Name
}

// found is the gateway's own view of the server, in the revisions with sessions or without.
func (x *exchange) found() *discovery.Server {
	if x.modern != nil && !x.bridged {
		return x.target.under[mcp.Modern]
	}
	return x.target.found
}

// claimed is what the server is told of what the client can do, as a raw object. In a session that was said in
// initialize, so it is nil where the message does not say it once more, which a server could act on.
func (x *exchange) claimed() []byte {
	if x.modern == nil {
		if x.sess == nil || !x.msg.Meta.Capabilities.Present() {
			return nil
		}
		return []byte(mcp.Told(x.sess.Client.Offer.Abilities))
	}
	if x.toldTasks {
		return []byte(mcp.Told(x.can, mcp.ExtensionTasks))
	}
	return []byte(mcp.Told(x.can))
}
