package authn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// watchRetry is how long to wait before the policy role is asked again.
const watchRetry = 200 * time.Millisecond

// WatchTokens keeps tokens up to date from the policy role until ctx ends. While
// the role is away the set grows stale and accepts nobody.
func WatchTokens(ctx context.Context, from identityv1.IdentityServiceClient, tokens *Tokens, log *slog.Logger) error {
	away := false
	for ctx.Err() == nil {
		err := watchOnce(ctx, from, tokens, func() {
			if away {
				log.InfoContext(ctx, "tokens are known again")
			}
			away = false
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // being stopped is no error
		}
		if !away {
			log.WarnContext(ctx, "tokens are not known: the policy role is away", "error", err)
			away = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
	return nil
}

func watchOnce(ctx context.Context, from identityv1.IdentityServiceClient, tokens *Tokens, heard func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := from.WatchTokens(ctx, &identityv1.WatchTokensRequest{})
	if err != nil {
		return fmt.Errorf("watch tokens: %w", err)
	}
	silence := time.AfterFunc(maxStale, cancel) // a stream that says nothing is broken
	defer silence.Stop()
	for known := false; ; {
		resp, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("watch tokens: %w", err)
		}
		silence.Reset(maxStale)
		known = known || resp.GetSet() != nil
		if !known { // a beat confirms the set of its own stream, not that of one before
			return errors.New("watch tokens: the first message holds no set")
		}
		if resp.GetSet() != nil {
			if err := tokens.Replace(resp.GetSet().GetTokens()); err != nil {
				return err
			}
		}
		tokens.Heard()
		heard()
	}
}
