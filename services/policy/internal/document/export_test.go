package document

// KeywordTexts returns the descriptions of the keys of documents. The result has the same keys as the map keywords.
func KeywordTexts() map[string]string {
	out := make(map[string]string, len(keywords))
	for name, k := range keywords {
		out[name] = k.text
	}
	return out
}
