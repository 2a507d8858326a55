package pipeline

import (
	"bytes"
	"context"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/redaction"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// recordArguments stores a copy of a call's arguments before the call is sent, if a rule or the server's configuration
// requires a copy. If recordArguments returns an error, the caller must not send the call.
func (p *Pipeline) recordArguments(ctx context.Context, a attempt.Attempt) (attempt.Attempt, error) {
	if !a.RecordArguments && !a.Decision.GetRecordArguments() || !a.Sent.Arguments.Present() {
		return a, nil
	}
	recorded := redaction.ForRecord(a.Decision.GetRedactions(), timeslices(ctx, a)).Recorded(a.Sent)
	stored, err := p.deps.Arguments.Put(a.ID, sharer(a), recorded)
	if err != nil {
		return a, err
	}
	original := a.Message.Arguments.Of(a.Message.Raw)
	a.Recorded = &journal.Recorded{Digest: stored.Digest, Place: stored.Place, Bytes: int64(len(recorded)), IsRedacted: !bytes.Equal(recorded, original)}
	return a, nil
}

// sharer returns the person whose storage quota is charged for a copy. This is the person at the root of the delegation
// chain or, without a chain, the person for whom the caller works.
func sharer(a attempt.Attempt) string {
	last := a.Principal
	if chain := a.Principal.GetChain(); len(chain) > 0 {
		last = chain[len(chain)-1]
	}
	person := principal.Person(last)
	return person.Tenant + "\x00" + person.Subject
}
