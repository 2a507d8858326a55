package reach_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
)

// policy answers with a revision, and counts its requests.
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

func ana() *identityv1.Principal {
	return &identityv1.Principal{
		Tenant: "acme", Subject: "ana", Agent: "dev", Groups: []string{"a", "b"}, Session: "s", Run: "r", TokenId: "t",
		Chain: []*identityv1.Principal{{Tenant: "acme", Subject: "boss"}},
	}
}

// X4: policy is asked once for each principal (as policy sees it), server and revision, and again while the active
// revision is not known.
func TestX4PolicyIsAskedAtEachRevision(t *testing.T) {
	t.Parallel()
	p, active := &policy{revision: "r1"}, "r1"
	r, err := reach.New(p, func() string { return active })
	if err != nil {
		t.Fatal(err)
	}
	asks := func(what string, want int, who *identityv1.Principal, server string) {
		t.Helper()
		before := p.asked
		for range 2 {
			if said, err := r.Of(t.Context(), who, server); err != nil || !said.Some || said.HidesNone || said.Revision != p.revision {
				t.Errorf("%s: %+v, %v", what, said, err)
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
	if said, err := r.Of(t.Context(), ana(), "files"); !errors.Is(err, errAway) || said.Some || said.HidesNone || said.Methods != nil {
		t.Errorf("policy is away: %+v, %v", said, err)
	}
}

// X4: the cache of one principal is limited.
func TestX4WhatIsKeptIsBounded(t *testing.T) {
	t.Parallel()
	p := &policy{revision: "r"}
	r, err := reach.New(p, func() string { return "r" })
	if err != nil {
		t.Fatal(err)
	}
	for i := range 257 {
		if _, err := r.Of(t.Context(), ana(), fmt.Sprintf("s%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Of(t.Context(), ana(), "s0"); err != nil || p.asked != 258 {
		t.Errorf("policy was asked %d times, %v; want 258, for the first was forgotten", p.asked, err)
	}
}

// BenchmarkOf measures the cost for an allowed call.
func BenchmarkOf(b *testing.B) {
	r, err := reach.New(&policy{revision: "r"}, func() string { return "r" })
	if err != nil {
		b.Fatal(err)
	}
	who := ana()
	for b.Loop() {
		if _, err := r.Of(b.Context(), who, "files"); err != nil {
			b.Fatal(err)
		}
	}
}

// N2: policy is asked once about each method that a server or a client invents, up to a limit.
func TestN2OtherMethodsAreAskedAboutOnce(t *testing.T) {
	t.Parallel()
	p := &policy{revision: "r", methods: []string{"notifications/x"}}
	r, err := reach.New(p, func() string { return "r" })
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if !r.May(t.Context(), ana(), "s", "notifications/x") || r.May(t.Context(), ana(), "s", "notifications/y") {
			t.Error("it is not what policy says")
		}
	}
	if n := p.asked; n != 3 { // once for the standing
		t.Errorf("policy was asked %d times", n)
	}
	for n := range 1000 {
		if r.May(t.Context(), ana(), "s", "notifications/z"+strconv.Itoa(n)) {
			t.Errorf("%d may", n)
		}
	}
	if n := p.asked; n != 1+256 {
		t.Errorf("policy was asked %d times", n)
	}
}
