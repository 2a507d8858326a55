package authn

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/grpcstream"
)

// errLate means that a message arrived more than 1 s after the message before it, or after the stream was opened.
var errLate = errors.New("the stream was interrupted for longer than a second")

var errNoSet = errors.New("the first message of the stream contains no set of tokens")

// WatchTokens updates tokens from the identity service until ctx is done, and acknowledges each set. The set becomes
// stale while the identity service is unavailable. WatchTokens calls reconnect if the service has sent no message for
// 2 s, because another replica may have a connection to the database.
func WatchTokens(ctx context.Context, from identityv1.IdentityServiceClient, tokens *Tokens, log *slog.Logger, reconnect func()) error {
	known, lost, last := false, false, time.Now()
	used := make(chan *identityv1.AcknowledgeTokensRequest, 1)
	stream := grpcstream.Stream[identityv1.WatchTokensResponse]{
		Open: func(ctx context.Context) (grpc.ServerStreamingClient[identityv1.WatchTokensResponse], error) {
			known, last = false, time.Now() // a message without a set confirms only the set from the same stream
			return from.WatchTokens(ctx, &identityv1.WatchTokensRequest{})
		},
		Handle: func(resp *identityv1.WatchTokensResponse) error {
			// A message that arrives late may have been sent before a revocation that is still on its way.
			if now := time.Now(); max(now.Sub(last), now.Round(0).Sub(last.Round(0))) > maxTokenAge {
				return errLate
			}
			last = time.Now()
			if known = known || resp.GetSet() != nil; !known {
				return errNoSet
			}
			if resp.GetSet() != nil {
				if err := tokens.Update(resp.GetSet()); err != nil {
					return err
				}
				select {
				case <-used: // the acknowledgment of an older set is no longer needed
				default:
				}
				used <- &identityv1.AcknowledgeTokensRequest{Watcher: resp.GetWatcher(), Version: resp.GetVersion()}
			}
			tokens.Confirm()
			if lost {
				log.InfoContext(ctx, "tokens are known again")
			}
			lost = false
			return nil
		},
		MaxSilence: sourceTimeout,
		OnError: func(err error) {
			if !lost {
				log.WarnContext(ctx, "tokens are not known: the identity role is unavailable", "error", err)
			}
			lost = true
			if errors.Is(err, grpcstream.ErrSilent) {
				reconnect()
			}
		},
	}
	var reports sync.WaitGroup
	reports.Go(func() { reportUses(ctx, from, tokens) })
	reports.Go(func() { acknowledge(ctx, from, used) })
	stream.Run(ctx)
	reports.Wait()
	return nil
}

// acknowledge acknowledges the sets of tokens that this process uses until ctx is done. If an acknowledgment is lost, a
// revocation takes longer.
func acknowledge(ctx context.Context, to identityv1.IdentityServiceClient, used <-chan *identityv1.AcknowledgeTokensRequest) {
	for {
		select {
		case <-ctx.Done():
			return
		case req := <-used:
			sending, cancel := context.WithTimeout(ctx, sourceTimeout)
			_, _ = to.AcknowledgeTokens(sending, req)
			cancel()
		}
	}
}

// reportUses reports the uses of tokens to the identity service until ctx is done. If a report fails, the next report
// contains the same uses.
func reportUses(ctx context.Context, to identityv1.IdentityServiceClient, tokens *Tokens) {
	tick := time.NewTicker(UseInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_ = tokens.ReportUses(func(uses []*identityv1.TokenUse) error {
			sending, cancel := context.WithTimeout(ctx, sourceTimeout)
			defer cancel()
			_, err := to.ReportTokenUse(sending, &identityv1.ReportTokenUseRequest{Uses: uses})
			return err
		})
	}
}
