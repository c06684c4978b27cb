"""First words of user turns, and system turns: they steer the target towards the kinds of text that people ask of it.

The target makes up everything after an opener. None of them is taken from the kit's evaluation prompts
(`assets/prompts`), and a test keeps the two apart.
"""

from __future__ import annotations

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What the chat template adds when a conversation has no system turn."""

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a concise assistant. Answer briefly.",
    "You are a careful proofreader.",
    "You are a helpful coding assistant.",
    "You are a patient teacher who explains step by step.",
    "You are an assistant that turns long texts into short ones.",
    "You rewrite the user's text as asked and add nothing else.",
    "You are an AI rewriting assistant capable of rewriting emails and messages to make them more professional.",
    "Extract and present the main key point of the input text in one very short sentence.",
    "Provide a concise, objective summary of the input text in up to three sentences, without second or third person pronouns.",
)

SHORT = """
What is|What are|What does|What causes|What would happen if|What can I|How do|How do I|How can I|How does|How many|How
long does|Why is|Why do|Why does|Who was|Who invented|When did|When was|Where is|Where can I|Which|Is it true that|Is
there|Are there|Can you explain|Can I|Could you|Do you|Does|Should I|Explain|Explain how|Explain the concept of|Explain
why|Describe|Describe how|Tell me about|Tell me a|Give me|Give three tips for|Give an example of|List|List five|Name|
Compare|What is the difference between|What are the benefits of|What are some|What are the main|Discuss|Define|Outline|
Hello!|Hi, can you|Hi there|Good morning!|Hey|I am feeling|I want to learn|I need help with|I'm planning|I'm trying to|I
have|I would like|I recently|I'm a|I've been|My|My friend|My job|My daughter|We are|Our|Let's|Let's talk about|Let's
play|Please|Please help me|Suppose|Imagine|Imagine you are|Pretend|Suggest|Recommend|Plan|Plan a|Create a|Create an
outline for|Design|Develop|Brainstorm|Generate|Draft|Compose|As a|In the|For a|The|There are|Thank you|Help me|
Write a short story about|Write a story|Write a poem about|Write a haiku|Write a song|Write an essay|Write an email|
Write a letter|Write a message|Write a speech|Write a product description for|Write a paragraph about|Write a dialogue
between|Write a blog post|Write a review of|Write instructions for|Write a list of|
Write a Python function|Write a Python function that takes|Write a Python program|Write a Python script|Write a
Python class|Write a function|Write a function in JavaScript|Write a JavaScript|Write a SQL query|Write a bash script|
Write an algorithm|Write a regular expression|Write HTML|Write a C program|Write a Java method|Write unit tests for|
Implement|Implement a|In Python, how|How do I use|Develop a Python|Create a Python|Create a function|Create a class|
I have a list of|I have a Python|Sort|Given a list of integers|Given a string|Given an array|Using pandas|
Solve the following problem:|Solve the equation|Solve for x|Calculate|Compute|Find|Find the value of|Find the area of|
Simplify|What is the sum of|What is the product of|What is the value of|What is the remainder when|If x|If a|If the|If
John|If there are|If you|A train|A store|A farmer|A box contains|A recipe|A rectangle|A tank|A school|A group of|A
company|John has|Sarah bought|Maria|James|Emily|There were|At a|In a class of|The price of|The sum of two|The ratio of|
Three|Two|Let x|Convert|Evaluate|Prove|Round|Express
""".replace("\n", " ")
"""Separated by `|`: openers of short requests, questions, code and maths."""

LONG = """
Summarize the following text:|Summarize the following text in one sentence:|Summarize the following article:|Summarize
this article in three sentences:|Summarize:|Please summarize the text below.|Summarize the email below:|Write a short
summary of this conversation:|Summarize the following passage for a child:|Condense this report:|Give a brief summary
of the story below:|TL;DR of this:|What are the key takeaways of this text?|State the main idea of this paragraph:|
Extract the main point of the following text:|
Rewrite the following text:|Rewrite the following sentence|Rewrite this paragraph:|Rewrite this paragraph to make it more
formal:|Rewrite this email so that it is more polite:|Rewrite the text below in simple English:|Rewrite in the passive
voice:|Rewrite the input text to make it more concise:|Make this text shorter:|Make this more professional:|Make the
following text friendlier:|Paraphrase:|Paraphrase the following passage:|Rephrase:|Edit this text:|Improve this
paragraph:|Correct the grammar:|Correct the spelling and grammar in this text:|Fix the grammar and punctuation:|Proofread
this:|Turn these notes into a paragraph:|Turn the following into bullet points:|Change the tense of this text to past:|
Translate the following into Spanish:|Translate into French:|Expand this sentence into a paragraph:|
Extract the names from the text:|Extract all dates from this text:|Extract the keywords from the following text:|Extract
the email addresses|List the people mentioned in this text:|List all the places mentioned below:|List the numbers in this
passage:|Find the verbs in this sentence:|Put the following information in a table:|Turn this text into JSON:|Read the
following passage and answer the question.|Read the text and answer the questions below.|Based on the passage below,|
Using only the information below, answer|Here is a text:|Here is an email:|Here is an article:|Here is a paragraph:|Here
is a review:|Here are my notes:|Classify the sentiment of this review:|Classify the following|Is the following review
positive or negative?|Identify the subject of this sentence:|Categorize these items:|Sort these words:|Choose the correct
answer.|Fill in the blanks:|
Here is some Python code:|Explain what this code does:|Explain this function:|Fix the bug in this code:|Find the error in
the following program:|Add comments to this code:|Refactor this code:|Convert this code to Python:|Complete this
function:|What is the output of this code?|Optimize the following|Write a docstring for this function:|Here is a SQL
table:|Document this class:
""".replace("\n", " ")
"""Separated by `|`: openers of requests that bring a longer text along."""


def short_openers() -> list[str]:
    """Openers whose user turns tend to be one sentence or two."""
    return _split(SHORT)


def long_openers() -> list[str]:
    """Openers whose user turns carry a text or a program to work on."""
    return _split(LONG)


def _split(text: str) -> list[str]:
    return [" ".join(item.split()) for item in text.split("|") if item.strip()]
