package store_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
)

// sessionOf returns a session of a person.
func sessionOf(name, subject string) store.Token {
	return store.Token{
		Name: name, Tenant: "default", Subject: subject, Groups: []string{"sre"}, Role: authv1.TokenRole_TOKEN_ROLE_VIEWER, Issuer: "corp",
		IssuerURL: "https://login.example.com", SHA256: sha256.Sum256([]byte(name)), CreatedByTenant: "default", CreatedBy: subject,
		AuthTime: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), ACR: "phr",
	}
}

// A session is stored with its role and its issuer. It ends like a token, but it can't be rotated.
func TestSessions_AreStored(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		one, two := open(), open()
		made, set, err := one.CreateSession(t.Context(), sessionOf("login-1", "corp/ana"), time.Hour)
		if err != nil || made.Expires.Sub(made.Created) != time.Hour || !slices.Equal(namesOf(set.Valid), []string{"login-1"}) {
			t.Fatalf("%+v, %+v, %v", made, set, err)
		}
		read, err := two.Tokens(t.Context())
		if diff := cmp.Diff([]store.Token{made}, read); err != nil || diff != "" {
			t.Errorf("the other process reads (-want +got): %v\n%s", err, diff)
		}
		if _, _, err := two.RotateToken(t.Context(), store.Rotation{Name: "login-1", AnyTenant: true, SHA256: sha256.Sum256([]byte("x"))}); !errors.Is(err, store.ErrSession) {
			t.Errorf("the rotation: %v", err)
		}
		if _, set, err = two.RevokeTokens(t.Context(), store.Revocation{Name: "login-1", OperatorTenant: "default", Operator: "root"}); err != nil || len(set.Valid) != 0 || len(set.Ended) != 1 {
			t.Errorf("the revocation: %+v, %v", set, err)
		}
	})
}

// A person who signs in again and again ends the oldest sessions, and is stopped after 20 sign-ins in a minute. Few ended
// sessions are stored. Other people are not affected.
func TestSessions_AreBoundedForEachPerson(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		for n := range 20 {
			if _, _, err := s.CreateSession(t.Context(), sessionOf(fmt.Sprintf("login-%02d", n), "corp/ana"), time.Hour); err != nil {
				t.Fatalf("session %d: %v", n, err)
			}
		}
		if _, _, err := s.CreateSession(t.Context(), sessionOf("login-20", "corp/ana"), time.Hour); !errors.Is(err, store.ErrSignInsTooOften) {
			t.Errorf("the next one: %v", err)
		}
		_, set, err := s.CreateSession(t.Context(), sessionOf("login-ben", "corp/ben"), time.Hour)
		if err != nil || len(set.Valid) != store.MaxSessionsOfPerson+1 || len(set.Ended) != 10 || !slices.Contains(namesOf(set.Valid), "login-19") || slices.Contains(namesOf(set.Valid), "login-09") {
			t.Errorf("valid %v, ended %v, %v", namesOf(set.Valid), namesOf(set.Ended), err)
		}
	})
}

// Sessions do not count as tokens of agents, and their groups have a maximum total size.
func TestSessions_HaveLimitsOfTheirOwn(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		large := sessionOf("login-1", "corp/ana")
		large.Groups = nil
		for n := range 256 {
			large.Groups = append(large.Groups, fmt.Sprintf("%03d%s", n, strings.Repeat("x", 125)))
		}
		var err error
		n := 0
		for ; err == nil && n < 100; n++ {
			next := large
			next.Name, next.Subject = fmt.Sprintf("login-%d", n), fmt.Sprintf("corp/%d", n)
			next.SHA256 = sha256.Sum256([]byte(next.Name))
			_, _, err = s.CreateSession(t.Context(), next, time.Hour)
		}
		if !errors.Is(err, store.ErrSessionsFull) || n < 50 {
			t.Errorf("after %d sessions: %v", n, err)
		}
		createToken(t, s, tokenOf("cursor-1", "default", "cursor", "ana"))
	})
}

func TestBlocks_AreStoredOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		one, two := open(), open()
		want := store.Block{Tenant: "default", Subject: "corp/ana", CreatedByTenant: "default", CreatedBy: "root", Reason: "has left"}
		made, set, err := one.Block(t.Context(), want)
		if err != nil || made.Created.IsZero() || len(set.Blocks) != 1 {
			t.Fatalf("%+v, %+v, %v", made, set, err)
		}
		again := want
		again.Reason = "another reason"
		if same, unchanged, err := two.Block(t.Context(), again); err != nil || same != made || unchanged.Version != set.Version {
			t.Errorf("the second block: %+v, %v", same, err)
		}
		if _, _, err := two.Block(t.Context(), store.Block{Tenant: "default", Client: "app", CreatedByTenant: "default", CreatedBy: "root"}); err != nil {
			t.Error(err)
		}
		later, err := one.TokensSince(t.Context(), set.Version)
		if err != nil || len(later.Blocks) != 2 {
			t.Errorf("the other process reads %+v, %v", later, err)
		}
		if _, err := one.Unblock(t.Context(), "default", "corp/ana", ""); err != nil {
			t.Error(err)
		}
		if _, err := one.Unblock(t.Context(), "default", "corp/ana", ""); !errors.Is(err, store.ErrBlockUnknown) {
			t.Errorf("the second end: %v", err)
		}
		if all, err := two.Blocks(t.Context()); err != nil || len(all) != 1 || all[0].Client != "app" {
			t.Errorf("%+v, %v", all, err)
		}
	})
}
