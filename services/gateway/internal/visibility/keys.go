package visibility

import (
	"slices"
	"strconv"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// AppendKey appends a key that is equal for principals that the policy cannot distinguish on a server. The key does not
// contain tokens or owners, because policy rules cannot match principals by them. It does not contain sessions or runs,
// because permissions cannot depend on them.
func AppendKey(dst []byte, p *identityv1.Principal, server string) []byte {
	dst = appendJudged(AppendPart(dst, server), p)
	for _, behind := range p.GetChain() {
		dst = appendJudged(dst, behind)
	}
	return dst
}

// AppendCaller appends a key for a caller on a server. The key does not depend on the caller's groups.
func AppendCaller(dst []byte, p *identityv1.Principal, server string) []byte {
	dst = AppendPart(dst, server)
	for _, who := range slices.Concat([]*identityv1.Principal{p}, p.GetChain()) {
		dst = AppendPart(AppendPart(AppendPart(dst, who.GetTenant()), who.GetSubject()), who.GetAgent())
	}
	return dst
}

// appendJudged appends the fields of a principal that policy rules can refer to.
func appendJudged(dst []byte, p *identityv1.Principal) []byte {
	dst = AppendPart(dst, p.GetTenant())
	dst = AppendPart(dst, p.GetSubject())
	dst = AppendPart(dst, p.GetAgent())
	dst = appendParts(dst, p.GetGroups())
	dst = AppendPart(dst, p.GetIssuer())
	dst = AppendPart(dst, p.GetClient())
	return appendParts(dst, p.GetScopes())
}

// appendParts appends the number of texts and each of them.
func appendParts(dst []byte, texts []string) []byte {
	dst = append(strconv.AppendInt(dst, int64(len(texts)), 10), ':')
	for _, text := range texts {
		dst = AppendPart(dst, text)
	}
	return dst
}

// AppendPart appends the length and the bytes of text, so that different sequences of parts have different keys.
func AppendPart[T string | []byte](dst []byte, text T) []byte {
	dst = strconv.AppendInt(dst, int64(len(text)), 10)
	dst = append(dst, ':')
	return append(dst, text...)
}
