package identity_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// A response names the account of its token, and the time of the sign-in. The time stays the same with a refresh, and
// changes with the next sign-in.
func TestAccessToken_NamesItsAccountAndSignIn(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveRefreshing(t, server, "", forPeople, 2*time.Hour) // so the token is refreshed at once
	s.connectAs(t, "viewer", false)
	s.connectAs(t, "operator", true)
	get := func(who *identityv1.Person, forDiscovery bool) *identityv1.GetAccessTokenResponse {
		t.Helper()
		got, err := s.tokenOf(t, who, forDiscovery)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got.GetPerson(), who) || got.GetForDiscovery() != forDiscovery || !got.GetConnected().IsValid() {
			t.Errorf("the response is for %v, %v, %v", got.GetPerson(), got.GetForDiscovery(), got.GetConnected())
		}
		return got
	}
	get(nil, true)
	first := get(person("viewer"), false)
	second := get(person("viewer"), false)
	if first.GetGeneration() == second.GetGeneration() || !first.GetConnected().AsTime().Equal(second.GetConnected().AsTime()) {
		t.Errorf("before and after a refresh: %v, %v", first, second)
	}
	s.connectAs(t, "viewer", false)
	if third := get(person("viewer"), false); !third.GetConnected().AsTime().After(second.GetConnected().AsTime()) {
		t.Errorf("before and after another sign-in: %v, %v", second, third)
	}
}

// A response with the token of a shared account names no person.
func TestAccessToken_OfASharedAccountNamesNoPerson(t *testing.T) {
	t.Parallel()
	s := serveConnections(t, startOAuthServer(t), "", nil)
	s.connect(t)
	if got := s.wantToken(t, 0, "access-token-1"); got.GetPerson() != nil || got.GetForDiscovery() || !got.GetConnected().IsValid() {
		t.Errorf("the response is for %v, %v, %v", got.GetPerson(), got.GetForDiscovery(), got.GetConnected())
	}
}
