package visibility_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

type policy struct {
	policyv1.PolicyServiceClient

	revision string
	asked    int
	methods  []string
}

var errAway = errors.New("away")

func (p *policy) CheckServer(context.Context, *policyv1.CheckServerRequest, ...grpc.CallOption) (*policyv1.CheckServerResponse, error) {
	p.asked++
	if p.revision == "" {
		return nil, errAway
	}
	return &policyv1.CheckServerResponse{CouldAllow: true, Methods: p.methods, PolicyRevision: p.revision}, nil
}

func newVisibility(p policyv1.PolicyServiceClient, revision func() string) (*visibility.Visibility, error) {
	return visibility.New(visibility.Deps{Policy: p, Revision: revision, Log: slog.New(slog.DiscardHandler)})
}

func ana() *identityv1.Principal {
	return &identityv1.Principal{
		Tenant: "acme", Subject: "ana", Agent: "dev", Groups: []string{"a", "b"}, Session: "s", Run: "r", TokenId: "t",
		Chain: []*identityv1.Principal{{Tenant: "acme", Subject: "boss"}},
	}
}

// Case X4. The gateway asks the policy service once for each principal, server and revision. While the active revision
// is unknown, it asks each time.
func TestAccess_IsAskedOncePerPrincipalServerAndRevision(t *testing.T) {
	t.Parallel()
	p, active := &policy{revision: "r1"}, "r1"
	v, err := newVisibility(p, func() string { return active })
	if err != nil {
		t.Fatal(err)
	}
	asks := func(what string, want int, who *identityv1.Principal, server string) {
		t.Helper()
		before := p.asked
		for range 2 {
			if access, err := v.Access(t.Context(), who, server); err != nil || !access.MayCall || access.HidesNone || access.Revision != p.revision {
				t.Errorf("%s: %+v, %v", what, access, err)
			}
		}
		if p.asked-before != want {
			t.Errorf("%s: policy was asked %d times, want %d", what, p.asked-before, want)
		}
	}
	asks("first", 1, ana(), "files")
	asks("another server", 1, ana(), "files2")
	for what, change := range map[string]func(*identityv1.Principal){
		"tenant": func(p *identityv1.Principal) { p.Tenant = "other" }, "subject": func(p *identityv1.Principal) { p.Subject = "ben" },
		"agent": func(p *identityv1.Principal) { p.Agent = "ci" }, "groups": func(p *identityv1.Principal) { p.Groups = []string{"ab"} },
		"no chain": func(p *identityv1.Principal) { p.Chain = nil }, "groups behind": func(p *identityv1.Principal) { p.Chain[0].Groups = []string{"x"} },
		"issuer": func(p *identityv1.Principal) { p.Issuer = "corp" }, "client": func(p *identityv1.Principal) { p.Client = "corp" },
		"scopes": func(p *identityv1.Principal) { p.Scopes = []string{"corp"} },
	} {
		who := ana()
		change(who)
		asks("another "+what, 1, who, "files")
	}
	same := proto.CloneOf(ana())
	same.Session, same.Run, same.TokenId, same.Owner = "s2", "r2", "t2", "boss"
	asks("another session, run and token", 0, same, "files")
	p.revision, active = "r2", "r2"
	asks("another revision", 1, ana(), "files")
	active = "r3"
	asks("a revision that policy does not serve yet", 2, ana(), "files")
	active = ""
	asks("no known revision", 2, ana(), "files")
	p.revision = ""
	if access, err := v.Access(t.Context(), ana(), "files"); !errors.Is(err, errAway) || access.MayCall || access.HidesNone || access.Methods != nil {
		t.Errorf("policy is away: %+v, %v", access, err)
	}
}

// Case X4. TestAccess_CacheOfOnePrincipalIsBounded checks that a principal's cache is emptied when the principal uses a
// 257th server.
func TestAccess_CacheOfOnePrincipalIsBounded(t *testing.T) {
	t.Parallel()
	p := &policy{revision: "r"}
	v, err := newVisibility(p, func() string { return "r" })
	if err != nil {
		t.Fatal(err)
	}
	for i := range 257 {
		if _, err := v.Access(t.Context(), ana(), fmt.Sprintf("s%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := v.Access(t.Context(), ana(), "s0"); err != nil || p.asked != 258 {
		t.Errorf("policy was asked %d times, %v; want 258, because the first was dropped", p.asked, err)
	}
}

// BenchmarkAccess measures Access with a cached response. Access is called for every allowed call.
func BenchmarkAccess(b *testing.B) {
	v, err := newVisibility(&policy{revision: "r"}, func() string { return "r" })
	if err != nil {
		b.Fatal(err)
	}
	who := ana()
	for b.Loop() {
		if _, err := v.Access(b.Context(), who, "files"); err != nil {
			b.Fatal(err)
		}
	}
}

// Case N2. A server or client may invent methods. The gateway asks the policy service only once about each method, and
// about at most 256 methods.
func TestMayUse_AsksOncePerMethodUpToALimit(t *testing.T) {
	t.Parallel()
	p := &policy{revision: "r", methods: []string{"notifications/x"}}
	v, err := newVisibility(p, func() string { return "r" })
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if !v.MayUse(t.Context(), ana(), "s", "notifications/x") || v.MayUse(t.Context(), ana(), "s", "notifications/y") {
			t.Error("the methods are not what policy allows")
		}
	}
	if n := p.asked; n != 3 { // one of the requests asks for the access
		t.Errorf("policy was asked %d times", n)
	}
	for n := range 1000 {
		if v.MayUse(t.Context(), ana(), "s", "notifications/z"+strconv.Itoa(n)) {
			t.Errorf("method %d is allowed", n)
		}
	}
	if n := p.asked; n != 1+256 {
		t.Errorf("policy was asked %d times", n)
	}
}
