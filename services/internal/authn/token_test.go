package authn_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

func record(name, secret string, edit ...func(*identityv1.Token)) *identityv1.TokenRecord {
	hash := authn.HashSecret(secret)
	token := &identityv1.Token{Name: name, Tenant: "default", Subject: name, Role: authv1.TokenRole_TOKEN_ROLE_AGENT}
	for _, change := range edit {
		change(token)
	}
	return &identityv1.TokenRecord{Token: token, Sha256: hash[:]}
}

const anasToken, bobsToken = "ana-token-F7h2K9s4L1p8Q3w6E5r0T", "bob-token-Z1x2C3v4B5n6M7a8S9d0F"

func TestLookup(t *testing.T) {
	t.Parallel()
	full := func(tok *identityv1.Token) {
		tok.Agent, tok.Owner, tok.Groups, tok.Created = "dev", "eve", []string{"a", "b"}, timestamppb.New(time.Unix(7, 0))
	}
	tokens, err := authn.NewTokens([]*identityv1.TokenRecord{record("ana", anasToken, full), record("bob", bobsToken)})
	if err != nil {
		t.Fatal(err)
	}
	want := &identityv1.Principal{
		Tenant: "default", Subject: "ana", Agent: "dev", Owner: "eve", Groups: []string{"a", "b"},
		Role: authv1.TokenRole_TOKEN_ROLE_AGENT, TokenId: "ana", TokenCreated: timestamppb.New(time.Unix(7, 0)),
	}
	got, err := tokens.Lookup(anasToken)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	hash := authn.HashSecret(anasToken)
	for _, secret := range []string{"", anasToken[1:], anasToken[:len(anasToken)-1], anasToken + " ", strings.ToUpper(anasToken), string(hash[:])} {
		if p, err := tokens.Lookup(secret); p != nil || !errors.Is(err, authn.ErrTokenUnknown) {
			t.Errorf("%q was accepted for %v, %v", secret, p, err)
		}
	}
}

func TestTokens_ZeroValueIsStale(t *testing.T) {
	t.Parallel()
	var tokens authn.Tokens
	tokens.Confirm() // a confirmation without a set has no effect
	if p, err := tokens.Lookup(anasToken); p != nil || !errors.Is(err, authn.ErrTokensStale) {
		t.Errorf("got %v, %v", p, err)
	}
	if tokens.HasSet() {
		t.Error("HasSet is true before a set was received")
	}
	if err := tokens.Replace(nil); err != nil || !tokens.HasSet() {
		t.Errorf("HasSet is false after an empty set: %v", err)
	}
}

func TestTokensReplace_KeepsOldSetOnError(t *testing.T) {
	t.Parallel()
	short := record("short", anasToken)
	short.Sha256 = short.Sha256[:31]
	tests := []struct {
		name    string
		records []*identityv1.TokenRecord
		message string
	}{
		{"half a hash", []*identityv1.TokenRecord{short}, "hash of 31 bytes"},
		{"no record", []*identityv1.TokenRecord{nil}, "hash of 0 bytes"},
		{"one text twice", []*identityv1.TokenRecord{record("a", anasToken), record("b", anasToken)}, `tokens "a" and "b" have the same text`},
		{"the hash of a sample", []*identityv1.TokenRecord{record("a", "change-me-change-me-change-me-change-me")}, "publicly known"},
		{"the hash of nothing", []*identityv1.TokenRecord{record("a", "")}, "publicly known"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tokens, err := authn.NewTokens([]*identityv1.TokenRecord{record("bob", bobsToken)})
			if err != nil {
				t.Fatal(err)
			}
			if err := tokens.Replace(tt.records); err == nil || !strings.Contains(err.Error(), tt.message) {
				t.Errorf("got %v", err)
			}
			if _, err := tokens.Lookup(bobsToken); err != nil {
				t.Errorf("the old set is gone: %v", err)
			}
			if p, err := tokens.Lookup(anasToken); err == nil {
				t.Errorf("part of the new set counts: %v", p)
			}
		})
	}
}

// Tokens become stale 1 s after the last confirmation. A stale token is not accepted, because it may have been revoked.
func TestTokensLookup_IsStaleAfterOneSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		own, err := authn.NewTokens([]*identityv1.TokenRecord{record("ana", anasToken)})
		if err != nil {
			t.Fatal(err)
		}
		held, err := authn.NewTokens([]*identityv1.TokenRecord{record("ana", anasToken)})
		if err != nil {
			t.Fatal(err)
		}
		held.Confirm()
		time.Sleep(time.Second)
		if _, err := held.Lookup(anasToken); err != nil {
			t.Errorf("after 1 s: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if p, err := held.Lookup(anasToken); !errors.Is(err, authn.ErrTokensStale) || p.GetSubject() != "ana" {
			t.Errorf("after more than 1 s: %v, %v; want ana and ErrTokensStale", p, err)
		}
		if p, err := held.Lookup(bobsToken); !errors.Is(err, authn.ErrTokensStale) || p != nil {
			t.Errorf("an unknown token: %v, %v", p, err)
		}
		held.Confirm()
		if _, err := held.Lookup(anasToken); err != nil {
			t.Errorf("confirmed again: %v", err)
		}
		time.Sleep(time.Hour)
		if _, err := own.Lookup(anasToken); err != nil {
			t.Errorf("tokens without a source became stale: %v", err)
		}
	})
}

func TestTokensLookup_RefusesExpiredToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		soon := timestamppb.New(time.Now().Add(time.Minute))
		tokens, err := authn.NewTokens([]*identityv1.TokenRecord{record("ana", anasToken, func(tok *identityv1.Token) { tok.Expires = soon })})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		if _, err := tokens.Lookup(anasToken); err != nil {
			t.Errorf("before its end: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if p, err := tokens.Lookup(anasToken); p != nil || !errors.Is(err, authn.ErrTokenExpired) {
			t.Errorf("at its end: %v, %v", p, err)
		}
		tokens.Confirm()
		time.Sleep(time.Hour)
		if p, err := tokens.Lookup(anasToken); p != nil || err == nil {
			t.Errorf("stale and ended: %v, %v", p, err)
		}
	})
}

func TestCheckSecret(t *testing.T) {
	t.Parallel()
	for range 100 {
		if secret := authn.NewSecret(); authn.CheckSecret(secret) != nil || len(secret) != 43 {
			t.Fatalf("a made secret is refused: %q", secret)
		}
	}
	if a, b := authn.NewSecret(), authn.NewSecret(); a == b {
		t.Error("two secrets are the same")
	}
	if err := authn.CheckSecret(strings.Repeat("ab", 16)); err != nil {
		t.Errorf("32 characters are refused: %v", err)
	}
	for secret, message := range map[string]string{
		"":                        "has 0 characters, fewer than 32",
		strings.Repeat("ab", 15):  "has 30 characters, fewer than 32",
		strings.Repeat("x", 64):   "sample",
		strings.Repeat("\x00", 9): "fewer than 32",
		"change-me-change-me-change-me-change-me": "sample",
		"0123456789abcdef0123456789abcdef":        "sample",
	} {
		err := authn.CheckSecret(secret)
		if err == nil || !strings.Contains(err.Error(), message) || !strings.Contains(err.Error(), "openssl rand -hex 32") {
			t.Errorf("%q: %v, want %q and how to make a token", secret, err, message)
		}
		if len(secret) > 8 && err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the message shows the secret: %v", err)
		}
	}
}

// tokenLiteral matches a token in a document.
var tokenLiteral = regexp.MustCompile(`\btoken: *"?([^\s"',}]+)`)

func TestCheckSecret_RefusesTokensInDocuments(t *testing.T) {
	t.Parallel()
	root, seen := filepath.Join("..", "..", ".."), 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == ".cache" || d.Name() == "node_modules" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md" && filepath.Ext(path) != ".yaml" && filepath.Ext(path) != ".yml":
			return nil
		}
		seen++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range tokenLiteral.FindAllStringSubmatch(string(text), -1) {
			if secret := found[1]; !strings.HasPrefix(secret, "${") && authn.CheckSecret(secret) == nil {
				t.Errorf("%s prints %q, which would be accepted: add it to the samples", path, secret)
			}
		}
		return nil
	})
	if err != nil || seen == 0 {
		t.Errorf("read %d documents: %v", seen, err)
	}
}

// A person calls a service that has just started. The call waits for the first set of tokens, but not longer than 2 s.
func TestLookupFresh_WaitsForTheFirstSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens := new(authn.Tokens)
		began := time.Now()
		if _, err := tokens.LookupFresh(t.Context(), anasToken); !errors.Is(err, authn.ErrTokensStale) || time.Since(began) != 2*time.Second {
			t.Errorf("without a set: %v after %v", err, time.Since(began))
		}
		time.AfterFunc(500*time.Millisecond, func() {
			if err := tokens.Replace([]*identityv1.TokenRecord{record("ana", anasToken)}); err != nil {
				t.Error(err)
			}
			tokens.Confirm()
		})
		began = time.Now()
		if p, err := tokens.LookupFresh(t.Context(), anasToken); err != nil || p.GetSubject() != "ana" || time.Since(began) != 500*time.Millisecond {
			t.Errorf("with a set after 500 ms: %v, %v after %v", p, err, time.Since(began))
		}
		time.Sleep(1500 * time.Millisecond)
		began = time.Now()
		if _, err := tokens.LookupFresh(t.Context(), bobsToken); !errors.Is(err, authn.ErrTokensStale) || time.Since(began) != 0 {
			t.Errorf("an unknown token while the set is stale: %v after %v", err, time.Since(began))
		}
	})
}

// The agent with a token uses the owner's connections only if the token says so. The owner alone gives no such right.
func TestLookup_PersonIsTheOwnerOfATokenThatUsesConnections(t *testing.T) {
	t.Parallel()
	owned := func(tok *identityv1.Token) { tok.Agent, tok.Owner = "dev", "eve" }
	using := func(tok *identityv1.Token) { tok.Agent, tok.Owner, tok.UsesConnections = "dev", "eve", true }
	tokens, err := authn.NewTokens([]*identityv1.TokenRecord{record("ana", anasToken, owned), record("bob", bobsToken, using)})
	if err != nil {
		t.Fatal(err)
	}
	for secret, want := range map[string]string{anasToken: "", bobsToken: "eve"} {
		if p, err := tokens.Lookup(secret); err != nil || p.GetOwner() != "eve" || p.GetPerson() != want {
			t.Errorf("the principal is %v, %v; want the person %q", p, err, want)
		}
	}
}

// An agent of the mesh that was created with a token loses its person when the token ends, or no longer gives its holder
// this person. An agent that a person or a JWT has created keeps its person.
func TestWithCurrentPerson_NeedsTheTokenOfTheCreator(t *testing.T) {
	t.Parallel()
	token := func(change ...func(*identityv1.Token)) *identityv1.TokenRecord {
		return record("bot", bobsToken, append([]func(*identityv1.Token){func(tok *identityv1.Token) {
			tok.Agent, tok.Owner, tok.UsesConnections = "dev", "ana", true
		}}, change...)...)
	}
	agent := func(id string, chain ...*identityv1.Principal) *identityv1.Principal {
		return &identityv1.Principal{Tenant: "default", Subject: "agent:default/" + id, Owner: "ana", Person: "ana", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Chain: chain}
	}
	bot := &identityv1.Principal{Tenant: "default", Subject: "bot", Agent: "dev", Owner: "ana", Person: "ana", TokenId: "bot", Role: authv1.TokenRole_TOKEN_ROLE_AGENT}
	jwt := &identityv1.Principal{Tenant: "default", Subject: "ana", Agent: "dev", Owner: "ana", Person: "ana", Issuer: "corp", Role: authv1.TokenRole_TOKEN_ROLE_AGENT}
	byToken, bySibling := agent("1", bot), agent("2", agent("1"), bot)
	for name, tt := range map[string]struct {
		set    *identityv1.TokenSet
		p      *identityv1.Principal
		person string
	}{
		"the token gives the person":           {&identityv1.TokenSet{Tokens: []*identityv1.TokenRecord{token()}}, byToken, "ana"},
		"also to an agent's agent":             {&identityv1.TokenSet{Tokens: []*identityv1.TokenRecord{token()}}, bySibling, "ana"},
		"the token was revoked":                {&identityv1.TokenSet{Ended: []*identityv1.EndedToken{endedToken("bot", bobsToken, true)}}, byToken, ""},
		"the token was revoked, agent's agent": {&identityv1.TokenSet{Ended: []*identityv1.EndedToken{endedToken("bot", bobsToken, true)}}, bySibling, ""},
		"the token is unknown":                 {&identityv1.TokenSet{}, byToken, ""},
		"the token uses no connections":        {&identityv1.TokenSet{Tokens: []*identityv1.TokenRecord{token(func(tok *identityv1.Token) { tok.UsesConnections = false })}}, byToken, ""},
		"the token has another owner":          {&identityv1.TokenSet{Tokens: []*identityv1.TokenRecord{token(func(tok *identityv1.Token) { tok.Owner = "ben" })}}, byToken, ""},
		"the token has another subject":        {&identityv1.TokenSet{Tokens: []*identityv1.TokenRecord{token(func(tok *identityv1.Token) { tok.Subject = "bot2" })}}, byToken, ""},
		"a person has created the agent":       {&identityv1.TokenSet{}, agent("1"), "ana"},
		"a JWT has created the agent":          {&identityv1.TokenSet{}, agent("1", jwt), "ana"},
		"no agent of the mesh":                 {&identityv1.TokenSet{}, bot, "ana"},
	} {
		tokens := new(authn.Tokens)
		if err := tokens.Update(tt.set); err != nil {
			t.Fatal(err)
		}
		before := proto.CloneOf(tt.p)
		got := tokens.WithCurrentPerson(tt.p)
		for _, one := range append([]*identityv1.Principal{got}, got.GetChain()...) {
			if one.GetPerson() != tt.person && (tt.person == "" || one.GetPerson() != "ana") {
				t.Errorf("%s: %v, want the person %q", name, got, tt.person)
			}
		}
		if !proto.Equal(before, tt.p) {
			t.Errorf("%s: the principal was modified", name)
		}
	}
	if got := new(authn.Tokens).WithCurrentPerson(byToken); got.GetPerson() != "" {
		t.Errorf("before a set was received: %v", got)
	}
}
