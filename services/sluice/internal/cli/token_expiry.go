package cli

import (
	"context"
	"slices"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
)

// recentlyExpired is how long an expired token is still reported.
const recentlyExpired = 7 * 24 * time.Hour

// endingTokens returns the tokens that expire soon or have recently expired. It omits a token if the same agent and
// owner have another token with enough remaining validity. It returns nil if the identity service does not respond.
func (t *tool) endingTokens(ctx context.Context, f *config.File) []tokenRecord {
	var all []tokenRecord
	err := t.withIdentityOf(ctx, f, func(ctx context.Context, client identityv1.IdentityServiceClient) (err error) {
		all, err = allTokens(ctx, client, true)
		return err
	})
	if err != nil {
		return nil
	}
	return endingTokens(all, time.Now())
}

func endingTokens(all []tokenRecord, now time.Time) []tokenRecord {
	type client struct{ tenant, agent, owner string }
	stays := make(map[client]bool)
	for _, one := range all {
		if one.Issuer == "" && one.Revoked.IsZero() && one.Expires.Sub(now) >= one.noticeTime() {
			stays[client{one.Tenant, one.Agent, one.Owner}] = true
		}
	}
	return slices.DeleteFunc(all, func(one tokenRecord) bool {
		left := one.Expires.Sub(now)
		return one.Issuer != "" || one.Expires.IsZero() || !one.Revoked.IsZero() || left >= one.noticeTime() || left < -recentlyExpired || stays[client{one.Tenant, one.Agent, one.Owner}]
	})
}

// noticeTime returns how long before its expiry a token is reported. This is two weeks, or a quarter of the token's
// lifetime if that is shorter.
func (t tokenRecord) noticeTime() time.Duration {
	return min(expiresSoon, t.Expires.Sub(t.Created)/4)
}

// endText describes when a token expires or has expired.
func (t tokenRecord) endText(now time.Time) string {
	verb := "expires soon, at "
	if !now.Before(t.Expires) {
		verb = "expired at "
	}
	return "the token of the agent " + t.Agent + " " + verb + t.Expires.Format(time.DateTime)
}

// checkTokens returns the results for tokens that expire soon or have expired.
func (t *tool) checkTokens(ending []tokenRecord, now time.Time) (out []checkResult) {
	for _, one := range ending {
		out = append(out, checkResult{stateWarning, "token " + one.ID, one.endText(now), "create another with " + t.command("token create "+shellWords(one.Agent)) + ", and put it into the client's configuration"})
	}
	return out
}
