package streamable_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/accesstoken"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/streamable"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// accounts is a connection service with the account of each person, and a server that people call with their accounts. A
// token of the generation 3 of ana is `access-token-ana-3`. It is safe for concurrent use.
type accounts struct {
	identityv1.ConnectionServiceClient
	*httptest.Server

	mu sync.Mutex
	// generations contains the generation of the valid token of each person who is signed in. The person of the account
	// for listing tools is "".
	generations map[string]int64
	// connected is the time at which a person has signed in again. life is the lifetime of each token, or 0.
	connected map[string]time.Time
	life      time.Duration
	// refusals contains the answers to the requests with a method, or to the requests without a body with an HTTP method.
	refusals map[string]refusal
	// ended contains the sessions that were ended, with the person and the generation of the token.
	ended []string
	// deleted contains the people who have disconnected the server. reconnects is how often a person has signed in again:
	// it is part of the token, and the server accepts the tokens of all sign-ins.
	deleted    []string
	reconnects map[string]int
	// streamEnded receives a value when the client has closed a stream. Streams stay open if it is not nil.
	streamEnded chan string
	// sessions contains the person who has opened each session. It is empty after a restart.
	sessions map[string]string
	opened   int
	// streams is the number of opened streams, calls the number of requests in sessions.
	streams, calls atomic.Int64
	// crossed contains the requests whose token does not belong to the person of the session.
	crossed []string
}

func startAccounts(t *testing.T, people ...string) *accounts {
	t.Helper()
	a := &accounts{generations: make(map[string]int64), sessions: make(map[string]string), connected: make(map[string]time.Time), refusals: make(map[string]refusal), reconnects: make(map[string]int)}
	for _, person := range people {
		a.generations[person], a.connected[person] = 1, time.Unix(1, 0)
	}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

// GetAccessToken implements identityv1.ConnectionServiceClient.
func (a *accounts) GetAccessToken(_ context.Context, req *identityv1.GetAccessTokenRequest, _ ...grpc.CallOption) (*identityv1.GetAccessTokenResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	person := req.GetPerson().GetSubject()
	generation, known := a.generations[person]
	if !known || (person == "") != req.GetForDiscovery() || slices.Contains(a.deleted, person) {
		return nil, (&rpc.Error{Code: codes.FailedPrecondition, Reason: "LOGIN_REQUIRED", Err: errors.New("no")}).GRPCStatus().Err()
	}
	resp := &identityv1.GetAccessTokenResponse{
		AccessToken: fmt.Sprintf("access-token-%s-%d%s", person, generation, strings.Repeat("-again", a.reconnects[person])), Generation: generation + int64(a.reconnects[person]), Person: req.GetPerson(), ForDiscovery: req.GetForDiscovery(),
		Connected: timestamppb.New(a.connected[person]),
	}
	if a.life != 0 {
		resp.ExpiresIn = durationpb.New(a.life)
	}
	return resp, nil
}

// replace makes the token of a person invalid. The next one is valid.
func (a *accounts) replace(person string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.generations[person]++
}

// restart makes the server forget all sessions.
func (a *accounts) restart() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.sessions)
}

// ServeHTTP implements http.Handler. It answers each request in a session with the name of the person.
func (a *accounts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	_ = json.Unmarshal(body, &m) // a GET has no body
	a.mu.Lock()
	defer a.mu.Unlock()
	person, generation := personOf(r)
	if a.generations[person] != generation {
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if refused := a.refusals[cmp.Or(m.Method, r.Method)]; refused.status != 0 {
		w.Header().Set("WWW-Authenticate", refused.challenge)
		w.WriteHeader(refused.status)
		return
	}
	if r.Method == http.MethodDelete {
		a.ended = append(a.ended, fmt.Sprint(r.Header.Get("Mcp-Session-Id"), " ", person, " ", generation))
		return
	}
	if m.Method == "server/discover" {
		writeJSON(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{},"resultType":"complete"}}`, m.ID))
		return
	}
	if m.Method == "initialize" {
		a.opened++
		id := "session-" + strconv.Itoa(a.opened)
		a.sessions[id] = person
		w.Header().Set("Mcp-Session-Id", id)
		writeJSON(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`, m.ID))
		return
	}
	owner, known := a.sessions[r.Header.Get("Mcp-Session-Id")]
	if r.Header.Get("Mcp-Protocol-Version") == "2026-07-28" {
		owner, known = person, true
	}
	switch {
	case !known:
		w.WriteHeader(http.StatusNotFound)
	case owner != person:
		a.crossed = append(a.crossed, r.Method+" "+m.Method+" of "+person+" in a session of "+owner)
		w.WriteHeader(http.StatusForbidden)
	case (r.Method == http.MethodGet || m.Method == "subscriptions/listen") && a.streamEnded != nil:
		a.keepOpen(w, r, person)
	case r.Method == http.MethodGet:
		a.streams.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"data\":%q}}\n\n", person) // the client notices a broken stream
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
	default:
		a.calls.Add(1)
		writeJSON(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"for %s"}]}}`, m.ID, person))
	}
}

// keepOpen serves a stream until the client closes it. The caller holds the lock.
func (a *accounts) keepOpen(w http.ResponseWriter, r *http.Request, person string) {
	a.mu.Unlock()
	defer a.mu.Lock()
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"data\":%q}}\n\n", person)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
	a.streamEnded <- person
}

// disconnect deletes the connection of a person. Its token stays valid at the server.
func (a *accounts) disconnect(person string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deleted = append(a.deleted, person)
}

// connectAgain signs a person in again. The old token stays valid at the server.
func (a *accounts) connectAgain(person string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.connected[person] = time.Now()
	a.reconnects[person]++
}

// personOf returns the person and the generation of the token in a request.
func personOf(r *http.Request) (person string, generation int64) {
	parts := strings.Split(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer access-token-"), "-")
	if len(parts) >= 2 {
		generation, _ = strconv.ParseInt(parts[1], 10, 64)
	}
	return parts[0], generation
}

func writeJSON(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, text) // the client notices an incomplete answer
}

// refusal is an answer with an HTTP status and a challenge.
type refusal struct {
	status    int
	challenge string
}

// transport returns the transport of the gateway to the server.
func (a *accounts) transport(t *testing.T) upstream.Transport {
	t.Helper()
	connect := func(as accesstoken.Account) (upstream.Transport, error) {
		return streamable.New(streamable.Config{Name: "web", URL: a.URL, Tokens: accesstoken.New(a, "web", a.URL, as)}, slog.New(slog.DiscardHandler))
	}
	discovery, err := connect(accesstoken.Account{ForDiscovery: true})
	if err != nil {
		t.Fatal(err)
	}
	over := upstream.EachPerson(discovery, func(person principal.Key) (upstream.Transport, error) {
		return connect(accesstoken.Account{Person: person})
	})
	t.Cleanup(func() { _ = over.Close() })
	return upstreamtest.Roomy{Transport: over, All: upstreamtest.Answers()}
}

// openFor opens a session for an agent of a person.
func openFor(ctx context.Context, over upstream.Transport, agent, person string) (upstream.Conn, error) {
	hello := message("initialize", "0")
	if person != "" {
		hello.Person = principal.Key{Tenant: "t", Subject: person}
	}
	conn, _, err := over.Open(ctx, principal.Key{Tenant: "t", Subject: agent}, hello)
	return conn, err
}

// Property: whatever the agents of four people do at the same time, the server gets the token of a person only in
// requests of her sessions, and each answer is for the right person. Meanwhile, tokens are replaced and the server
// restarts.
func TestEachPerson_TokensNeverCross(t *testing.T) {
	t.Parallel()
	people := []string{"ana", "ben", "cleo", "dan"}
	server := startAccounts(t, people...)
	over := server.transport(t)
	ctx := within(t, time.Minute)
	var workers sync.WaitGroup
	for i := range 12 {
		seed := rand.NewPCG(uint64(i), 1)
		workers.Go(func() { actFor(ctx, t, server, over, fmt.Sprint("agent-", i), people[i%len(people)], rand.New(seed)) })
	}
	workers.Wait()
	if len(server.crossed) > 0 {
		t.Errorf("%d requests have crossed: %v", len(server.crossed), server.crossed[0])
	}
	if server.calls.Load() < 100 || server.streams.Load() < 10 {
		t.Errorf("the server has answered only %d calls and %d streams", server.calls.Load(), server.streams.Load())
	}
}

// actFor opens sessions for an agent of a person, calls the server and listens. Requests may fail because of the
// disturbances.
func actFor(ctx context.Context, t *testing.T, server *accounts, over upstream.Transport, agent, person string, random *rand.Rand) {
	t.Helper()
	var conn upstream.Conn
	for n := range 60 {
		if conn == nil {
			opened, err := openFor(ctx, over, agent, person)
			if err != nil {
				continue
			}
			conn = opened
		}
		switch random.IntN(12) {
		case 0:
			_ = conn.Close(ctx) // the session may be lost
			conn = nil
		case 1:
			server.restart()
		case 2:
			server.replace(person)
		case 3, 4:
			listenFor(ctx, t, conn, person)
		default:
			answer, err := conn.Request(ctx, message("tools/call", strconv.Itoa(n+1)), nil)
			if err == nil && !strings.Contains(string(answer.Message.Raw), "for "+person+`"`) {
				t.Errorf("an agent of %s got %s", person, answer.Message.Raw)
			}
		}
	}
	if conn != nil {
		_ = conn.Close(ctx) // the session may be lost
	}
}

func listenFor(ctx context.Context, t *testing.T, conn upstream.Conn, person string) {
	t.Helper()
	room := upstreamtest.Answers().Open(upstreamtest.Holder(principal.Key{Tenant: "t", Subject: person}))
	defer room.Close()
	_ = conn.Listen(ctx, upstream.Listener{Room: room, Opened: func() {}, Event: func(e upstream.Event) error { // the server ends the stream
		if e.Message != nil && !strings.Contains(string(e.Message), `"`+person+`"`) {
			t.Errorf("an agent of %s got the event %s", person, e.Message)
		}
		return nil
	}})
}

// Without a person, and before the person has signed in, nothing is sent. The gateway's own sessions use another
// account.
func TestEachPerson_NeedsThePersonsAccount(t *testing.T) {
	t.Parallel()
	server := startAccounts(t, "ana", "")
	over := server.transport(t)
	for name, person := range map[string]string{"no person": "", "a person who is not signed in": "ben"} {
		_, err := openFor(within(t, soon), over, "bot", person)
		if cause := upstream.CauseOf(err); !errors.Is(err, upstream.ErrNeverSent) || cause == nil || !cause.SignIn {
			t.Errorf("%s: the error is %v, with the cause %+v", name, err, cause)
		}
	}
	_, err := openFor(within(t, soon), over, "bot", "ben")
	if text := upstream.CauseOf(err).Text; !strings.Contains(text, "ben") || !strings.Contains(text, "`sluice connect web`") {
		t.Errorf("the cause is %q", text)
	}
	if server.opened != 0 {
		t.Error("a session was opened")
	}
	for _, hello := range []string{"", "ana"} { // also if the request names a person
		conn, err := openFor(within(t, soon), over, principal.Catalogue, hello)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Request(within(t, soon), message("tools/list", "1"), nil); err != nil {
			t.Error(err)
		}
	}
	if server.sessions["session-1"] != "" || server.sessions["session-2"] != "" || server.opened != 2 {
		t.Errorf("the gateway has opened the sessions %v", server.sessions)
	}
}

// The transport of a person without a session is closed when there are too many of them. She can open sessions again.
func TestEachPerson_UnusedTransportsAreClosed(t *testing.T) {
	t.Parallel()
	var people []string
	for i := range 100 {
		people = append(people, fmt.Sprint("person", i))
	}
	server := startAccounts(t, people...)
	over := server.transport(t)
	for range 2 {
		for _, person := range people {
			conn, err := openFor(within(t, soon), over, "agent", person)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(conn.Close(within(t, soon)), conn.Close(within(t, soon))); err != nil {
				t.Error(err)
			}
		}
	}
	if len(server.crossed) > 0 || server.opened != 200 {
		t.Errorf("%d sessions, %v", server.opened, server.crossed)
	}
}

// A person can have 256 sessions with a server. When one ends, there can be another one.
func TestEachPerson_SessionsAreLimited(t *testing.T) {
	t.Parallel()
	server := startAccounts(t, "ana", "ben")
	over := server.transport(t)
	var last upstream.Conn
	for range 256 {
		conn, err := openFor(within(t, time.Minute), over, "agent", "ana")
		if err != nil {
			t.Fatal(err)
		}
		last = conn
	}
	_, err := openFor(within(t, soon), over, "agent", "ana")
	if cause := upstream.CauseOf(err); !errors.Is(err, upstream.ErrNeverSent) || cause == nil || cause.SignIn {
		t.Errorf("the error is %v, with the cause %+v", err, cause)
	}
	if _, err := openFor(within(t, soon), over, "agent", "ben"); err != nil {
		t.Errorf("another person: %v", err)
	}
	if err := last.Close(within(t, soon)); err != nil {
		t.Error(err)
	}
	if _, err := openFor(within(t, soon), over, "agent", "ana"); err != nil {
		t.Errorf("after a session has ended: %v", err)
	}
}
