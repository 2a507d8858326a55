package identity_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// A revocation returns when all watchers have acknowledged it. If one is silent, it returns when the silent watcher
// can't accept tokens any more.
func TestRevokeToken_WaitsForAcknowledgments(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		acknowledged bool
		least, most  time.Duration
	}{
		"acknowledged":     {true, 500 * time.Millisecond, 600 * time.Millisecond},
		"not acknowledged": {false, 2 * time.Second, 2500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			svc, _, _ := start(t, options{})
			synctest.Wait()
			ctx := authn.WithCaller(t.Context(), &authn.Caller{Person: &identityv1.Principal{Tenant: "default", Subject: "operator", Role: authv1.TokenRole_TOKEN_ROLE_OPERATOR}})
			if _, err := svc.CreateToken(ctx, newToken("cursor-1", "default", "cursor")); err != nil {
				t.Fatal(err)
			}
			stream := newWatchStream[identityv1.WatchTokensResponse](t.Context())
			go func() { _ = svc.WatchTokens(new(identityv1.WatchTokensRequest), stream) }() // ends with the test
			synctest.Wait()
			var watching sync.WaitGroup
			if test.acknowledged {
				watching.Go(func() {
					time.Sleep(300 * time.Millisecond)
					all := stream.messages()
					last := all[len(all)-1].message
					if _, err := svc.AcknowledgeTokens(t.Context(), &identityv1.AcknowledgeTokensRequest{Watcher: last.GetWatcher(), Version: last.GetVersion()}); err != nil {
						t.Error(err)
					}
				})
			}
			began := time.Now()
			if _, err := svc.RevokeToken(ctx, &identityv1.RevokeTokenRequest{Name: "cursor-1"}); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took < test.least || took > test.most {
				t.Errorf("%s: the revocation took %v, want %v to %v", name, took, test.least, test.most)
			}
			watching.Wait()
		})
	}
}
