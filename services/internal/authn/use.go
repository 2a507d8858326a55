package authn

import (
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

const (
	// UseInterval is the interval at which uses of tokens are reported.
	UseInterval = 10 * time.Second
	// usePrecision is the minimum time between two recorded uses of a token. A token is therefore reported at most once
	// in this time.
	usePrecision = time.Minute
	// maxUses limits how many uses a report contains. ReportTokenUse has the same limit.
	maxUses = 200
)

// tokenUse contains the times of a token's last use and of the last reported use, in seconds since 1970. A nil
// *tokenUse ignores uses.
type tokenUse struct{ last, reported atomic.Int64 }

func (u *tokenUse) record(now time.Time) {
	if u == nil {
		return
	}
	if last := u.last.Load(); now.Unix()-last >= int64(usePrecision/time.Second) {
		u.last.CompareAndSwap(last, now.Unix())
	}
}

// useOf returns the tokenUse of the same token in the set, or a new tokenUse if the set does not contain the token. The
// set may be nil.
func (s *tokenSet) useOf(t *token) *tokenUse {
	if s != nil {
		if before := s.find(&t.bearer.hash); before != nil && before.use != nil {
			return before.use
		}
	}
	return new(tokenUse)
}

// ReportUses passes the uses of tokens that were not reported yet to report, at most 200 in each call. If report
// returns an error, ReportUses returns that error, and the next call reports these uses again. Uses of tokens from the
// configuration are not reported.
func (t *Tokens) ReportUses(report func([]*identityv1.TokenUse) error) error {
	set := t.set.Load()
	if set == nil {
		return nil
	}
	var unreported []*token
	for _, one := range set.tokens {
		if one.use != nil && one.use.last.Load() > one.use.reported.Load() {
			unreported = append(unreported, one)
		}
	}
	for batch := range slices.Chunk(unreported, maxUses) {
		uses := make([]*identityv1.TokenUse, len(batch))
		for i, one := range batch {
			uses[i] = &identityv1.TokenUse{Name: one.name, Used: timestamppb.New(time.Unix(one.use.last.Load(), 0))}
		}
		if err := report(uses); err != nil {
			return err
		}
		for i, one := range batch {
			one.use.reported.Store(uses[i].GetUsed().GetSeconds())
		}
	}
	return nil
}
