package classify

import (
	"slices"
	"strings"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// moved are nouns for movements of money. A tool that creates or changes one of them moves money.
var moved = set("payment refund payout charge withdrawal deposit donation purchase remittance disbursement reimbursement")

// mayMove are nouns that can mean a movement of money: an order can be a purchase or a sequence.
var mayMove = set("order transaction transfer invoice trade checkout adjustment credit loan bid swap funds money plan")

// movers are verbs that can move money or other things.
var movers = set("transfer send swap trade order finalize capture authorize withdraw deposit stake settle fund place")

// takers are verbs that move money if their object is money, and otherwise read.
var takers = set("capture take open load return convert place order swap")

// amounts are words in names of parameters about money.
var amounts = set("amount price currency total cents payment card wallet iban payee payer recipient_account lamports wei usd eur unit_amount plan billing")

// about are words in descriptions about money.
var about = set(`money funds payment payments pay pays billing billed usd eur dollar dollars euro cents currency crypto
	cryptocurrency wallet balance refund charge charged price prices bank card invoice eth btc sol usdc bitcoin`)

// byMoney adds evidence that the tool moves money.
func (c *finding) byMoney() {
	lead := c.leads()
	if lead == read && !takers[verbText(c.inName)] && !takers[verbText(c.inText)] {
		return
	}
	at := c.object()
	object := singular(at.text)
	speaks := c.speaksOfMoney()
	meaning := ""
	verb := ""
	for _, s := range []*said{c.inName, c.inText} {
		if s != nil && (s.category == financial || movers[s.base]) {
			verb = s.base
		}
	}
	switch {
	case object == "charge" && c.isAbout(batteries):
		return
	case object == "invoice" && !dues[verbText(c.inName)] && !dues[verbText(c.inText)] && !near(c.name, len(c.name), sent): // writing an invoice only keeps books
		return
	case object == "subscription" && !c.isAbout(feeds) && !near(c.sentence(), len(c.text), news),
		moved[object]:
		meaning = "what it makes or changes is money on its way"
	case mayMove[object] && (speaks || c.isAbout(markets)), c.deals():
		meaning = "what it makes or changes is money on its way, as it speaks of prices, amounts or payers"
	case movers[verb] && (c.hasAmount() || c.inText != nil && c.inText.base == verb && near(c.behind(c.inText), 3, coins)):
		meaning = "it moves what has a price or an amount"
	default:
		return
	}
	c.add(&policyv1.Evidence{Path: "/name", Offset: int32(at.offset), Quote: at.raw, Category: financial, Weight: 0.8, Meaning: meaning})
}

// behind returns the words that follow a verb in the description.
func (c *finding) behind(s *said) []word {
	i := slices.IndexFunc(c.text, func(w word) bool { return w.offset == s.offset })
	return c.text[i+1:]
}

// coins are words for money. sent has words for an invoice that is due.
var (
	coins = set("funds money tokens coins crypto cryptocurrency sol eth btc usdc usdt")
	sent  = set("sent")
)

// deals reports whether the description begins with a verb about orders.
func (c *finding) deals() bool {
	return c.inText != nil && near(c.behind(c.inText), 7, bids) && c.isAbout(markets)
}

var (
	bids    = set("order position")
	markets = set("spot unfilled staking defi trade trading perpetual futures leverage margin")
)

// hasAmount reports whether a parameter is an amount.
func (c *finding) hasAmount() bool {
	return slices.ContainsFunc(c.tool.Parameters, func(p Parameter) bool { return near(nameWords(p.Name), 8, sums) })
}

var sums = set("amount amt currency ccy lamports wei cents")

// dues are verbs that make an invoice due.
var dues = set("send finalize pay issue approve authorize authorise submit charge collect")

// feeds are things to which a subscription costs nothing.
var feeds = set("webhook webhooks event events notification notifications topic topics feed newsletter mailing queue calendar channel resource resources")

// news are more things to which a subscription costs nothing, at the beginning of a description.
var news = set("changes updates")

func verbText(s *said) string {
	if s == nil {
		return ""
	}
	return s.base
}

// isAbout reports whether the name or the description contains one of the words.
func (c *finding) isAbout(any map[string]bool) bool {
	return near(c.name, len(c.name), any) || near(c.text, len(c.text), any)
}

// object returns the last noun of the name before a preposition. It is the thing that the tool reads or changes.
func (c *finding) object() word {
	var last word
	for _, w := range c.name {
		switch {
		case prepositions[w.text] && last.text != "":
			return last
		case prepositions[w.text], kinds[w.text]:
		case c.inName != nil && w.offset == c.inName.offset && c.inName.category != financial:
		default:
			last = w
		}
	}
	return last
}

var (
	prepositions = set("by for from with in to of on at into as")
	kinds        = set("v1 v2 v3 tool api batch bulk")
)

// speaksOfMoney reports whether a parameter or the description mentions money.
func (c *finding) speaksOfMoney() bool {
	for _, p := range c.tool.Parameters {
		for _, w := range nameWords(p.Name) {
			if amounts[w.text] || amounts[strings.ToLower(p.Name)] {
				return true
			}
		}
	}
	for _, w := range c.text {
		if about[w.text] {
			return true
		}
	}
	return false
}
