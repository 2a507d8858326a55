package wasmagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/models"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// PersonDay bounds what all agents of one person may use of models in a day (UTC).
type PersonDay struct {
	// Cost is an amount of US dollars; empty means 10. It counts models that have prices.
	Cost string
	// Tokens are those of questions and answers; 0 means 10,000,000.
	Tokens int64
}

// dayBound is a [PersonDay] as it is counted.
type dayBound struct{ store.Amount }

func (d PersonDay) bound() (dayBound, error) {
	nanos, err := models.Nanos(cmp.Or(d.Cost, "10"))
	if err != nil {
		return dayBound{}, fmt.Errorf("agents.person_day.cost: %w", err)
	}
	return dayBound{store.Amount{Tokens: cmp.Or(d.Tokens, 10_000_000), Nanos: nanos}}, nil
}

// errDaySpent is refused with what was used, when that renews, and what changes it.
var errDaySpent = errors.New("what one person may use of models in a day is used up")

// today is a time's day, counted from 1970-01-01, UTC.
func today(now time.Time) int64 { return now.Unix() / int64(24*time.Hour/time.Second) }

// refused is why a person that used an amount may ask no more today.
func (b dayBound) refused(of principal.Key, used store.Amount, day int64) error {
	renews := time.Unix((day+1)*int64(24*time.Hour/time.Second), 0).UTC().Format(time.RFC3339)
	said, key := fmt.Sprintf("%d tokens a day, and %d are used", b.Tokens, used.Tokens), "tokens"
	if used.Tokens < b.Tokens {
		said, key = fmt.Sprintf("%s US dollars a day, and %s are used", models.Dollars(b.Nanos), models.Dollars(used.Nanos)), "cost"
	}
	return fmt.Errorf("%w: all agents of %s together may use %s; this renews at %s; an operator changes it with agents.person_day.%s",
		errDaySpent, of.Subject, said, renews, key)
}

// reserveDay takes the most that a question should take out of what a person may use today.
// settle replaces that by what it took. If this process ends before, the most stays taken.
func (s *Service) reserveDay(ctx context.Context, of principal.Key, most models.Answer) (settle func(took models.Answer), err error) {
	amount := amountOf(most)
	if amount == (store.Amount{}) {
		return func(models.Answer) {}, nil
	}
	day := today(time.Now())
	used, ok, err := s.store.ReserveDay(ctx, of, day, amount, s.day.Amount)
	if err != nil {
		return nil, errors.Join(store.ErrAway, err)
	}
	if !ok {
		return nil, s.day.refused(of, used, day)
	}
	return func(took models.Answer) {
		change := amountOf(took)
		change.Tokens, change.Nanos = change.Tokens-amount.Tokens, change.Nanos-amount.Nanos
		ctx := context.WithoutCancel(ctx)
		if err := s.store.AddDay(ctx, of, day, change); err != nil {
			s.log.WarnContext(ctx, "what a question took can't be counted; the most that it could take stays counted", "error", err)
		}
	}, nil
}

func amountOf(a models.Answer) store.Amount {
	return store.Amount{Tokens: a.Input + a.Output, Nanos: a.Nanos}
}
