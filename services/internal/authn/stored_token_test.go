package authn_test

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

func storedRecord(name, secret string, expires time.Time) *identityv1.TokenRecord {
	hash := authn.HashSecret(secret)
	return &identityv1.TokenRecord{Sha256: hash[:], Token: &identityv1.Token{
		Name: name, Tenant: "default", Subject: name, Agent: "cursor", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Expires: timestamppb.New(expires),
	}}
}

func endedToken(name, secret string, revoked bool) *identityv1.EndedToken {
	hash := authn.HashSecret(secret)
	return &identityv1.EndedToken{Sha256: hash[:], Name: name, Revoked: revoked}
}

func TestNewAgentSecret_HasTheFormForScanners(t *testing.T) {
	t.Parallel()
	form, seen := regexp.MustCompile(`^slc1_a_[0-9A-Za-z]{49}$`), make(map[string]bool)
	for range 1000 {
		secret := authn.NewAgentSecret()
		if !form.MatchString(secret) || seen[secret] || authn.CheckSecret(secret) != nil {
			t.Fatalf("%q: %v", secret, authn.CheckSecret(secret))
		}
		seen[secret] = true
	}
}

// A character of a secret is mistyped, or the secret is cut short. The checksum detects each of these errors.
func TestCheckSecret_DetectsMistypedSecrets(t *testing.T) {
	t.Parallel()
	secret := authn.NewAgentSecret()
	for i := len("slc1_"); i < len(secret); i++ {
		other := []byte(secret)
		if other[i] = 'x'; secret[i] == 'x' {
			other[i] = 'y'
		}
		if authn.CheckSecret(string(other)) == nil || authn.CheckSecret(secret[:i]) == nil {
			t.Errorf("an error at character %d is accepted", i)
		}
	}
	if authn.CheckSecret(secret+"0") == nil {
		t.Error("a longer secret is accepted")
	}
}

func TestLookup_NamesTheEndOfAToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		live, revoked, expired := authn.NewAgentSecret(), authn.NewAgentSecret(), authn.NewAgentSecret()
		var tokens authn.Tokens
		err := tokens.Update(&identityv1.TokenSet{
			Tokens: []*identityv1.TokenRecord{storedRecord("live", live, time.Now().Add(time.Hour))},
			Ended:  []*identityv1.EndedToken{endedToken("revoked", revoked, true), endedToken("expired", expired, false)},
		})
		if err != nil {
			t.Fatal(err)
		}
		check := func(secret string, want error) {
			t.Helper()
			p, err := tokens.Lookup(secret)
			if !errors.Is(err, want) || (p == nil) != (want != nil) {
				t.Errorf("%v, %v; want %v", p, err, want)
			}
		}
		check(live, nil)
		check(revoked, authn.ErrTokenRevoked)
		check(expired, authn.ErrTokenExpired)
		check(authn.NewAgentSecret(), authn.ErrTokenUnknown)
		check(live[:len(live)-1], authn.ErrTokenUnknown)
		time.Sleep(time.Hour)
		check(live, authn.ErrTokenExpired)
		if found, err := tokens.PrincipalsOf("default", "live"); err != nil || found != nil {
			t.Errorf("the expired token has the principals %v, %v", found, err)
		}
	})
}

// A token is used continuously. Its uses are reported once a minute, even after the set of tokens was replaced. If a
// report fails, the uses are reported again. Uses of tokens from the configuration are not reported.
func TestReportUses_ReportsATokenOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		secret, configured := authn.NewAgentSecret(), authn.NewAgentSecret()
		records := []*identityv1.TokenRecord{storedRecord("used", secret, time.Now().Add(time.Hour)), storedRecord("configured", configured, time.Now().Add(time.Hour))}
		records[1].Token.Configured = true
		tokens, err := authn.NewTokens(records)
		if err != nil {
			t.Fatal(err)
		}
		away, reports, last := errors.New("away"), 0, time.Time{}
		report := func(fails error) error {
			return tokens.ReportUses(func(uses []*identityv1.TokenUse) error {
				if len(uses) != 1 || uses[0].GetName() != "used" {
					t.Errorf("reported are %v", uses)
				}
				if fails == nil {
					reports++
					last = uses[0].GetUsed().AsTime()
				}
				return fails
			})
		}
		for second := range 600 {
			for _, s := range []string{secret, configured, "unknown"} {
				_, _ = tokens.Lookup(s)
			}
			if second%100 == 0 {
				if err := tokens.Replace(records); err != nil {
					t.Fatal(err)
				}
				if err := report(away); second == 0 && !errors.Is(err, away) {
					t.Errorf("a failed report returns %v", err)
				}
			}
			if err := report(nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if reports != 10 || time.Since(last) > 61*time.Second {
			t.Errorf("%d reports in 10 minutes, the last use %v ago", reports, time.Since(last))
		}
	})
}

// A service watches the tokens and uses one of them. It reports the use to the identity service.
func TestWatchTokens_ReportsUses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		secret, messages := authn.NewAgentSecret(), make(chan *identityv1.WatchTokensResponse)
		from, tokens := &source{streams: []chan *identityv1.WatchTokensResponse{messages}, uses: make(chan *identityv1.ReportTokenUseRequest, 1)}, new(authn.Tokens)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- authn.WatchTokens(ctx, from, tokens, slog.New(slog.DiscardHandler), func() {}) }()
		messages <- set(storedRecord("used", secret, time.Now().Add(time.Hour)))
		synctest.Wait()
		if subjectOf(tokens, secret) != "used" {
			t.Fatal("the token is not known")
		}
		if uses := (<-from.uses).GetUses(); len(uses) != 1 || uses[0].GetName() != "used" {
			t.Errorf("reported are %v", uses)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
