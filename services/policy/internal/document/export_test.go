package document

// KeywordTexts returns the descriptions of keys. They are indexed by the names in keywords.
func KeywordTexts() map[string]string {
	out := make(map[string]string, len(keywords))
	for name, k := range keywords {
		out[name] = k.text
	}
	return out
}
