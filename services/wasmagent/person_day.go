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

// PersonDay limits how much one person's agents may use models per day (UTC), all together.
type PersonDay struct {
	// Cost limits the cost, in US dollars. An empty string means 10. Questions to models without a price cost nothing.
	Cost string
	// Tokens limits the number of tokens in questions and answers. 0 means 10,000,000.
	Tokens int64
}

// dayLimit is a parsed [PersonDay].
type dayLimit struct{ store.Amount }

func (d PersonDay) limit() (dayLimit, error) {
	nanos, err := models.Nanos(cmp.Or(d.Cost, "10"))
	if err != nil {
		return dayLimit{}, fmt.Errorf("agents.person_day.cost: %w", err)
	}
	return dayLimit{store.Amount{Tokens: cmp.Or(d.Tokens, 10_000_000), Nanos: nanos}}, nil
}

// errDayLimit means that a person has reached the daily limit. The error that wraps it contains the current usage, the
// time when the usage is reset, and the configuration key of the limit.
var errDayLimit = errors.New("the person's daily limit on models is used up")

func dayNumber(now time.Time) int64 { return now.Unix() / int64(24*time.Hour/time.Second) }

// exceededError returns the error for a person who has reached the limit.
func (b dayLimit) exceededError(person principal.Key, used store.Amount, day int64) error {
	renews := time.Unix((day+1)*int64(24*time.Hour/time.Second), 0).UTC().Format(time.RFC3339)
	output, key := fmt.Sprintf("%d tokens a day, and %d are used", b.Tokens, used.Tokens), "tokens"
	if used.Tokens < b.Tokens {
		output, key = fmt.Sprintf("%s US dollars a day, and %s are used", models.Dollars(b.Nanos), models.Dollars(used.Nanos)), "cost"
	}
	return fmt.Errorf("%w: all agents of %s together may use %s; this renews at %s; an operator changes it with agents.person_day.%s",
		errDayLimit, person.Subject, output, renews, key)
}

// reserveDay counts the estimated maximum usage of a question against the person's limit for today. The returned
// function replaces the estimate with the actual usage. If the process ends before it calls this function, the estimate
// stays counted.
func (s *Service) reserveDay(ctx context.Context, person principal.Key, most models.Answer) (settle func(actual models.Answer), err error) {
	amount := amountOf(most)
	if amount == (store.Amount{}) {
		return func(models.Answer) {}, nil
	}
	day := dayNumber(time.Now())
	used, ok, err := s.store.ReserveDay(ctx, person, day, amount, s.personDayLimit.Amount)
	if err != nil {
		return nil, errors.Join(store.ErrUnavailable, err)
	}
	if !ok {
		return nil, s.personDayLimit.exceededError(person, used, day)
	}
	return func(actual models.Answer) {
		change := amountOf(actual)
		change.Tokens, change.Nanos = change.Tokens-amount.Tokens, change.Nanos-amount.Nanos
		ctx := context.WithoutCancel(ctx)
		if err := s.store.AddDay(ctx, person, day, change); err != nil {
			s.log.WarnContext(ctx, "the use of a question can't be counted; its expected maximum stays counted", "error", err)
		}
	}, nil
}

func amountOf(a models.Answer) store.Amount {
	return store.Amount{Tokens: a.Input + a.Output, Nanos: a.Nanos}
}
