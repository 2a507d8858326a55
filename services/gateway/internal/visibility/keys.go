package visibility

import (
	"slices"
	"strconv"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// AppendKey appends a key that is the same for principals which policy can't distinguish on a server. The key contains
// no tokens and owners, which policy does not see, and no sessions and runs, because no rule allows anything by them.
func AppendKey(dst []byte, p *identityv1.Principal, server string) []byte {
	dst = appendJudged(AppendPart(dst, server), p)
	for _, behind := range p.GetChain() {
		dst = appendJudged(dst, behind)
	}
	return dst
}

// AppendCaller appends a key that stays the same for a caller on a server when the caller's groups change.
func AppendCaller(dst []byte, p *identityv1.Principal, server string) []byte {
	dst = AppendPart(dst, server)
	for _, who := range slices.Concat([]*identityv1.Principal{p}, p.GetChain()) {
		dst = AppendPart(AppendPart(AppendPart(dst, who.GetTenant()), who.GetSubject()), who.GetAgent())
	}
	return dst
}

// appendJudged appends the parts of a principal that policy considers.
func appendJudged(dst []byte, p *identityv1.Principal) []byte {
	dst = AppendPart(dst, p.GetTenant())
	dst = AppendPart(dst, p.GetSubject())
	dst = AppendPart(dst, p.GetAgent())
	dst = append(strconv.AppendInt(dst, int64(len(p.GetGroups())), 10), ':')
	for _, g := range p.GetGroups() {
		dst = AppendPart(dst, g)
	}
	return dst
}

// AppendPart appends a text after its length, so that different sequences of texts have different keys.
func AppendPart[T string | []byte](dst []byte, text T) []byte {
	dst = strconv.AppendInt(dst, int64(len(text)), 10)
	dst = append(dst, ':')
	return append(dst, text...)
}
