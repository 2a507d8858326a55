package classify

import (
	"slices"
	"strings"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// moneyMovements contains nouns for movements of money. A tool that creates or changes such a thing moves money.
var moneyMovements = set("payment refund payout charge withdrawal deposit donation purchase remittance disbursement reimbursement")

// possibleMovements contains nouns that can also have other meanings. For example, an order can be a purchase or a
// sequence.
var possibleMovements = set("order transaction transfer invoice trade checkout adjustment credit loan bid swap funds money plan")

// moveVerbs contains verbs whose object can be money or another thing.
var moveVerbs = set("transfer send swap trade order finalize capture authorize withdraw deposit stake settle fund place")

// moneyTakers contains verbs that move money if their object is money. With other objects, they only read.
var moneyTakers = set("capture take open load return convert place order swap")

// amountWords contains words about money in parameter names.
var amountWords = set("amount price currency total cents payment card wallet iban payee payer recipient_account lamports wei usd eur unit_amount plan billing")

// moneyWords contains words about money in descriptions.
var moneyWords = set(`money funds payment payments pay pays billing billed usd eur dollar dollars euro cents currency crypto
	cryptocurrency wallet balance refund charge charged price prices bank card invoice eth btc sol usdc bitcoin`)

// byMoney adds evidence that the tool moves money.
func (c *finding) byMoney() {
	lead := c.leadCategory()
	c.byMoneyName()
	c.byReward()
	c.byPayments()
	if lead == read && !moneyTakers[verbText(c.inName)] && !moneyTakers[verbText(c.inText)] || c.onlyDeletes() {
		return
	}
	at := c.object()
	object := singular(at.text)
	speaks := c.speaksOfMoney()
	meaning := ""
	verb := ""
	for _, s := range []*foundVerb{c.inName, c.inText} {
		if s != nil && (s.category == financial || moveVerbs[s.base]) {
			verb = s.base
		}
	}
	switch {
	case object == "charge" && c.isAbout(batteries):
		return
	case object == "invoice" && !dueVerbs[verbText(c.inName)] && !dueVerbs[verbText(c.inText)] && !containsNear(c.name, len(c.name), dueInvoiceWords): // to write an invoice moves no money
		return
	case object == "subscription" && !c.isAbout(freeSubscriptions) && !c.hasParameterWord(messageWords) && !containsNear(c.sentence(), len(c.text), freeTopics),
		moneyMovements[object]:
		meaning = "it creates or changes a payment"
	case object == "order" && (orderVerbs[verbText(c.inName)] || orderVerbs[verbText(c.inText)]):
		meaning = "it places an order"
	case possibleMovements[object] && (speaks || c.isAbout(markets)), c.beginsWithOrder():
		meaning = "it creates or changes a payment, because its definition mentions prices, amounts or payers"
	case moveVerbs[verb] && (c.hasAmount() || c.inText != nil && c.inText.base == verb && containsNear(c.wordsAfter(c.inText), 3, coinWords)):
		meaning = "it moves something that has a price or an amount"
	default:
		return
	}
	c.add(&policyv1.Evidence{Path: "/name", Offset: int32(at.offset), Quote: at.raw, Category: financial, Weight: 0.8, Meaning: meaning})
}

// orderVerbs contains the verbs that place an order.
var orderVerbs = set("place confirm")

// messageWords contains words in parameter names of tools that subscribe to messages. Such subscriptions are free.
var messageWords = set("message messages newsletter topic topics channel channels")

// onlyDeletes reports whether the leading verbs of the name and the description are both "delete". Such a tool does not
// move money even if it deletes the record of a payment.
func (c *finding) onlyDeletes() bool {
	return c.inName != nil && c.inText != nil && c.inName.base == "delete" && c.inText.base == "delete"
}

// hasParameterWord reports whether one of the given words occurs in the name of a parameter.
func (c *finding) hasParameterWord(any map[string]bool) bool {
	return slices.ContainsFunc(c.tool.Parameters, func(p Parameter) bool { return containsNear(nameWords(p.Name), 8, any) })
}

// byMoneyName adds evidence from a name such as transfer_funds if the leading verbs have the category Read.
func (c *finding) byMoneyName() {
	if len(c.name) != 2 || c.leadCategory() != read || !moveVerbs[c.name[0].text] && verbs[c.name[0].text].category != financial {
		return
	}
	if object := c.name[1]; coinWords[object.text] || moneyMovements[singular(object.text)] {
		c.add(&policyv1.Evidence{
			Path: "/name", Offset: int32(object.offset), Quote: object.raw, Category: financial, Weight: weightAside, Meaning: "the name says that it moves money",
		})
	}
}

// byReward adds evidence from a parameter that contains the amount that the caller pays, for example budget_usd. It
// adds nothing if the leading verbs clearly have the category Read.
func (c *finding) byReward() {
	if c.leadCategory() == read && !c.leadIsWeak() {
		return
	}
	for _, p := range c.tool.Parameters {
		words := nameWords(p.Name)
		if len(words) > 1 && containsNear(words, len(words), rewardWords) && currencies[words[len(words)-1].text] {
			c.add(&policyv1.Evidence{Path: p.Path, InKey: true, Quote: p.Name, Category: financial, Weight: 0.8, Meaning: "callers pass how much is paid"})
			return
		}
	}
}

var (
	rewardWords = set("budget prize reward bounty bonus tip pay fee")
	currencies  = set("usd eur gbp usdc usdt btc eth sol")
)

// byPayments adds evidence from a clause that says that the tool makes a payment or requires one.
func (c *finding) byPayments() {
	if c.leadCategory() == read {
		return
	}
	at := payments(c.tool.Description[:min(len(c.tool.Description), maxAside)])
	if at == nil || c.isNegated(at[0]) {
		return
	}
	c.add(&policyv1.Evidence{
		Path: "/description", Offset: int32(at[0]), Quote: c.tool.Description[at[0]:at[1]], Category: financial, Weight: 0.7, Meaning: "it says that something is paid",
	})
}

// payments matches clauses that say that the tool makes a payment or requires one.
var payments = matcher(`payment|payout|refund|funds|оплаты|pago|pagamento|paiement|zahlung|付款|支払|결제`, `\b((?:releas|issu|mak)e?s? (?:an? |the |their |your )?(?:payments?|payouts?|refunds?|funds)|requires? (?:\w+ ){0,3}payment)\b|`+
	`(требует оплаты|requiere (?:un )?pago|exige pagamento|requer pagamento|nécessite un paiement|erfordert eine zahlung|richiede (?:un )?pagamento|需要付款|支払いが必要|결제가 필요)`)

// wordsAfter returns the words that follow the verb s in the description.
func (c *finding) wordsAfter(s *foundVerb) []word {
	i := slices.IndexFunc(c.text, func(w word) bool { return w.offset == s.offset })
	return c.text[i+1:]
}

// coinWords contains words for money. dueInvoiceWords contains words in tool names. They show that the tool makes an
// invoice due.
var (
	coinWords       = set("funds money tokens coins crypto cryptocurrency sol eth btc usdc usdt")
	dueInvoiceWords = set("sent")
)

// beginsWithOrder reports whether the object of the description's leading verb is a trading order or position.
func (c *finding) beginsWithOrder() bool {
	return c.inText != nil && containsNear(c.wordsAfter(c.inText), 7, bids) && c.isAbout(markets)
}

var (
	bids    = set("order position")
	markets = set("spot unfilled staking defi trade trading perpetual futures leverage margin")
)

// hasAmount reports whether a parameter's name says that the parameter is an amount.
func (c *finding) hasAmount() bool {
	return slices.ContainsFunc(c.tool.Parameters, func(p Parameter) bool { return containsNear(nameWords(p.Name), 8, amountNames) })
}

var amountNames = set("amount amt currency ccy lamports wei cents")

// dueVerbs contains verbs that make an invoice due.
var dueVerbs = set("send finalize pay issue approve authorize authorise submit charge collect")

// freeSubscriptions contains things to which people can subscribe for free.
var freeSubscriptions = set("webhook webhooks event events notification notifications topic topics feed newsletter mailing queue calendar channel resource resources")

// freeTopics contains words for further free subscriptions. They count only in the first sentence of a description.
var freeTopics = set("changes updates")

func verbText(s *foundVerb) string {
	if s == nil {
		return ""
	}
	return s.base
}

// isAbout reports whether one of the given words occurs in the tool's name or description.
func (c *finding) isAbout(any map[string]bool) bool {
	return containsNear(c.name, len(c.name), any) || containsNear(c.text, len(c.text), any)
}

// object returns the noun in the tool's name for the thing that the tool reads or changes. This is the last noun, or
// the last noun before a preposition.
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

// speaksOfMoney reports whether a parameter's name or the description mentions money.
func (c *finding) speaksOfMoney() bool {
	for _, p := range c.tool.Parameters {
		for _, w := range nameWords(p.Name) {
			if amountWords[w.text] || amountWords[strings.ToLower(p.Name)] {
				return true
			}
		}
	}
	for _, w := range c.text {
		if moneyWords[w.text] {
			return true
		}
	}
	return false
}
