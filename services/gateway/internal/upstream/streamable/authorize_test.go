package streamable_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/accesstoken"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/streamable"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// issuing is a connection service that issues access tokens. A refused token is replaced. It is safe for concurrent use.
type issuing struct {
	identityv1.ConnectionServiceClient

	mu         sync.Mutex
	generation int64
	// cannotReplace is true if refused tokens are not replaced.
	cannotReplace bool
	err           error
	// refused are the generations of the refused tokens.
	refused []int64
}

// hasRefused reports whether the gateway has reported that the server refuses a token.
func (i *issuing) hasRefused(generation int64) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Contains(i.refused, generation)
}

func tokenText(generation int64) string { return fmt.Sprintf("access-token-number-%d", generation) }

func (i *issuing) GetAccessToken(_ context.Context, req *identityv1.GetAccessTokenRequest, _ ...grpc.CallOption) (*identityv1.GetAccessTokenResponse, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err != nil {
		return nil, i.err
	}
	if refused := req.GetRefusedGeneration(); refused != 0 {
		i.refused = append(i.refused, refused)
	}
	if i.generation == 0 || req.GetRefusedGeneration() == i.generation && !i.cannotReplace {
		i.generation++
	}
	return &identityv1.GetAccessTokenResponse{AccessToken: tokenText(i.generation), Generation: i.generation}, nil
}

// newAuthorized returns a transport to a server that requires OAuth.
func newAuthorized(t *testing.T, s *web, tokens *issuing) *streamable.Transport {
	t.Helper()
	over, err := streamable.New(streamable.Config{Name: "web", URL: s.URL, Tokens: accesstoken.New(tokens, "web", s.URL, accesstoken.Account{})}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = over.Close() })
	return over
}

// unless returns a reply that answers 401 unless the request has the access token of a generation.
func unless(generation int64, reply webReply) webReply {
	return func(w http.ResponseWriter, r *http.Request, p webPost) {
		if r.Header.Get("Authorization") != "Bearer "+tokenText(generation) {
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		reply(w, r, p)
	}
}

var done = plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"result":{}}`)

// A request is repeated once with another token if the server refuses the first one.
func TestAuthorize_RefusedTokenIsReplaced(t *testing.T) {
	t.Parallel()
	for size, blanks := range sizes {
		t.Run(size, func(t *testing.T) {
			t.Parallel()
			s, tokens := newWeb(t), new(issuing)
			s.on("initialize", unless(1, greet("first", "2025-11-25")))
			s.on("tools/call", unless(2, done))
			conn := openOver(t, newAuthorized(t, s, tokens))
			for range 2 {
				if _, err := conn.Request(within(t, soon), padded(message("tools/call", "1"), blanks), nil); err != nil {
					t.Fatal(err)
				}
			}
			if n := len(s.got("tools/call")); n != 3 {
				t.Errorf("the server has received %d requests for 2 calls", n)
			}
		})
	}
}

// If the server refuses each token, the error says what an operator can do, and the identity service learns that the
// new token was refused. A request that must not be sent twice is not repeated.
func TestAuthorize_ServerRefusesEachToken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		once, cannotReplace bool
		requests            int
	}{"replaced": {requests: 2}, "not replaced": {cannotReplace: true, requests: 1}, "once": {once: true, requests: 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, tokens := newWeb(t), &issuing{cannotReplace: c.cannotReplace}
			conn := openOver(t, newAuthorized(t, s, tokens))
			s.on("tools/call", unless(99, done))
			req := message("tools/call", "1")
			req.Once = c.once
			_, err := conn.Request(within(t, soon), req, nil)
			if cause := upstream.CauseOf(err); !errors.Is(err, upstream.ErrNoAnswer) || cause == nil || !strings.Contains(cause.Text, "sluice connect web") {
				t.Errorf("the error is %v, with the cause %+v", err, cause)
			}
			if n := len(s.got("tools/call")); n != c.requests {
				t.Errorf("the server has received %d requests, want %d", n, c.requests)
			}
			if name == "replaced" {
				eventually.Holds(t, "the gateway has reported the second token", func() bool { return tokens.hasRefused(2) })
			}
		})
	}
}

// A status 401 without a challenge for bearer tokens can come from another service that a tool has called. The call is
// not repeated. Neither this status nor a missing scope ends the session.
func TestAuthorize_OtherRefusalsAreNotRepeated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status    int
		challenge string
	}{
		"no challenge": {401, ""}, "another scheme": {401, `Basic realm="x"`}, "another error": {401, `Bearer error="invalid_request"`}, "a missing scope": {403, `Bearer error="insufficient_scope", scope="admin"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, tokens := newWeb(t), new(issuing)
			conn := openOver(t, newAuthorized(t, s, tokens))
			s.on("tools/call", inTurn(func(w http.ResponseWriter, _ *http.Request, _ webPost) {
				w.Header().Set("WWW-Authenticate", c.challenge)
				w.WriteHeader(c.status)
			}, done))
			if _, err := conn.Request(within(t, soon), message("tools/call", "1"), nil); upstream.CauseOf(err) == nil {
				t.Errorf("the error is %v", err)
			}
			if n := len(s.got("tools/call")); n != 1 {
				t.Errorf("the server has received %d requests", n)
			}
			if _, err := conn.Request(within(t, soon), message("tools/call", "2"), nil); err != nil && c.status == 403 {
				t.Errorf("the session has ended: %v", err)
			}
		})
	}
}

// Without an access token, nothing is sent.
func TestAuthorize_WithoutATokenNothingIsSent(t *testing.T) {
	t.Parallel()
	s, tokens := newWeb(t), &issuing{err: status.Error(codes.Unavailable, "the store is away")}
	over := newAuthorized(t, s, tokens)
	_, _, err := upstreamtest.Roomy{Transport: over, All: upstreamtest.Answers()}.Open(within(t, soon), principal.Key{Tenant: "t", Subject: "s"}, message("initialize", "0"))
	if cause := upstream.CauseOf(err); !errors.Is(err, upstream.ErrNeverSent) || cause == nil || !strings.Contains(cause.Text, "try again later") {
		t.Errorf("the error is %v, with the cause %+v", err, cause)
	}
	if n := len(s.got("")); n != 0 {
		t.Errorf("the server has received %d requests", n)
	}
}

// An answer that repeats the access token does not reveal it, also if the token was replaced meanwhile.
func TestAuthorize_TokensAreRedacted(t *testing.T) {
	t.Parallel()
	s, tokens := newWeb(t), new(issuing)
	conn := openOver(t, newAuthorized(t, s, tokens))
	s.on("tools/call", unless(2, plain(200, "application/json", `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"`+tokenText(1)+` and `+tokenText(2)+`"}]}}`)))
	answer, err := conn.Request(within(t, soon), message("tools/call", "1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(answer.Message.Raw); strings.Contains(text, "access-token-number") || !strings.Contains(text, " and ") {
		t.Errorf("the answer is %s", text)
	}
}

// A token that is replaced when the stream of an answer is resumed is redacted in the rest of the answer.
func TestAuthorize_TokenOfAResumedStreamIsRedacted(t *testing.T) {
	t.Parallel()
	s, tokens := newWeb(t), new(issuing)
	conn := openOver(t, newAuthorized(t, s, tokens))
	s.on("tools/call", unless(1, events("retry: 1\nid: a\ndata:\n\n")))
	s.on("", unless(2, events(`data: {"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"`+tokenText(1)+` and `+tokenText(2)+`"}]}}`+"\n\n")))
	answer, err := conn.Request(within(t, soon), message("tools/call", "1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(answer.Message.Raw); strings.Contains(text, "access-token-number") || !strings.Contains(text, " and ") {
		t.Errorf("the answer is %s", text)
	}
}

// The token is sent with every kind of request of a session.
func TestAuthorize_EveryRequestHasAToken(t *testing.T) {
	t.Parallel()
	s, tokens := newWeb(t), new(issuing)
	conn := openOver(t, newAuthorized(t, s, tokens))
	if err := conn.Notify(within(t, soon), message("notifications/initialized", "")); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(within(t, soon)); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.got("") {
		if p.header.Get("Authorization") != "Bearer "+tokenText(1) {
			t.Errorf("%s has the header %q", p.method, p.header.Get("Authorization"))
		}
	}
	if len(s.ended()) != 1 {
		t.Error("the session was not ended")
	}
}
